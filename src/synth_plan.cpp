// Before each step, in this order: finished sequences free their blocks, some are preempted, those away long enough come
// back, new ones arrive, rows are shuffled, and some sit the step out. Events keep that order, so a block freed by one
// sequence can be taken by the next within the same step.
#include "synth_plan.hpp"

#include <algorithm>
#include <utility>

#include "gdnsim/error.hpp"
#include "synth_values.hpp"

namespace gdnsim {
namespace {

/// Each decision has its own tag in the last counter word.
enum class Decision : std::uint8_t { length, arrive, shuffle, skip, preempt, away, block, path, sentinel };

struct Sequence {
  std::uint32_t id = 0;
  std::uint32_t position = 0;
  std::uint32_t resumed = 0;
  std::int64_t length = -1;  // -1: endless
  std::int32_t block = -1;   // where the state lies; -1: dropped
  std::int64_t back = 0;     // first step at which it may come back
};

class Scheduler {
 public:
  explicit Scheduler(const Recipe& recipe);
  Schedule run();

 private:
  using Row = std::optional<Sequence>;

  std::uint32_t word(Decision decision, std::uint64_t a, std::uint64_t b = 0) const;
  bool happens(Decision decision, double rate, std::uint64_t a, std::uint64_t b = 0) const;
  std::int64_t within(Range range, std::uint32_t word) const;
  bool room() const { return running_ < limit_ && !free_blocks_.empty(); }

  void event(EventKind kind, std::int32_t block, std::int32_t source = -1, std::int32_t layer = -1);
  std::int32_t take_block();
  void give_block(std::int32_t block);
  void load(Sequence& sequence);
  void seat(const Sequence& sequence);

  void end_finished();
  void preempt();
  void evict(Row& row);
  void resume();
  void arrive();
  void shuffle();
  std::vector<int> rows_of_step();
  void emit(const std::vector<int>& rows);
  std::int32_t sentinel(int row) const;

  const Recipe& recipe_;
  const ScheduleRecipe& rules_;
  const int limit_;
  std::int64_t step_ = 0;
  std::vector<Row> rows_;       // [B] who sits where
  std::vector<Sequence> away_;  // in the order they left
  std::vector<std::int32_t> free_blocks_;
  std::vector<std::int32_t> last_index_;  // [B] what each row's index was
  std::uint32_t next_id_;
  std::uint64_t taken_ = 0;  // blocks taken so far: the address of the next choice
  int running_ = 0;
  Schedule out_;
};

Scheduler::Scheduler(const Recipe& recipe)
    : recipe_(recipe),
      rules_(recipe.schedule),
      limit_(recipe.schedule.running > 0 ? recipe.schedule.running : recipe.rows),
      rows_(static_cast<std::size_t>(recipe.rows)),
      next_id_(static_cast<std::uint32_t>(recipe.schedule.first_sequence)) {
  const std::int32_t lowest = recipe.model.sentinel == Sentinel::minus_one ? 0 : 1;
  for (std::int64_t block = lowest; block < recipe.model.num_blocks; ++block)
    free_blocks_.push_back(static_cast<std::int32_t>(block));
  for (int row = 0; row < recipe.rows; ++row) last_index_.push_back(sentinel(row));
}

std::uint32_t Scheduler::word(Decision decision, std::uint64_t a, std::uint64_t b) const {
  const auto tag = static_cast<Tensor>(static_cast<int>(Tensor::schedule) + static_cast<int>(decision));
  const Address address{recipe_.seed, tag, 0, static_cast<std::uint32_t>(a), static_cast<std::uint32_t>(b)};
  return philox(address.counter(), address.key())[0];
}

bool Scheduler::happens(Decision decision, double rate, std::uint64_t a, std::uint64_t b) const {
  return rate > 0 && word(decision, a, b) < threshold(rate);
}

std::int64_t Scheduler::within(Range range, std::uint32_t word) const {
  const auto count = static_cast<std::uint64_t>(range.highest - range.lowest + 1);
  return range.lowest + static_cast<std::int64_t>(count * word >> 32);
}

void Scheduler::event(EventKind kind, std::int32_t block, std::int32_t source, std::int32_t layer) {
  out_.events.push_back({static_cast<std::int32_t>(step_), layer, block, kind, source});
}

std::int32_t Scheduler::take_block() {
  GDNSIM_CHECK(!free_blocks_.empty());
  const auto last = static_cast<std::int64_t>(free_blocks_.size()) - 1;
  const auto pick = static_cast<std::size_t>(within({0, last}, word(Decision::block, taken_++)));
  std::swap(free_blocks_[pick], free_blocks_.back());
  const std::int32_t block = free_blocks_.back();
  free_blocks_.pop_back();
  return block;
}

void Scheduler::give_block(std::int32_t block) {
  event(EventKind::free, block);
  free_blocks_.push_back(block);
}

/// Puts the sequence's starting state in its block: zeros, or one load row a layer.
void Scheduler::load(Sequence& sequence) {
  if (recipe_.states.start == StateRecipe::Start::zero) return event(EventKind::zero, sequence.block);
  const int layers = recipe_.model.layers();
  const auto source = static_cast<std::int64_t>(out_.loads.size()) * layers;
  if (source + layers > INT32_MAX)
    throw error("recipe: schedule: more than 2^31 load rows; expected fewer sequences or layers");
  for (int layer = 0; layer < layers; ++layer)
    event(EventKind::load, sequence.block, static_cast<std::int32_t>(source + layer), layer);
  out_.loads.push_back({sequence.id, sequence.resumed});
}

/// The first empty row.
void Scheduler::seat(const Sequence& sequence) {
  const auto row = std::find(rows_.begin(), rows_.end(), std::nullopt);
  GDNSIM_CHECK(row != rows_.end());
  *row = sequence;
  ++running_;
}

void Scheduler::end_finished() {
  for (Row& row : rows_) {
    if (!row || row->length < 0 || row->position < row->length) continue;
    give_block(row->block);
    row.reset();
    --running_;
  }
}

void Scheduler::preempt() {
  for (Row& row : rows_)
    if (row && row->position > 0 &&
        happens(Decision::preempt, rules_.preempt, row->id, static_cast<std::uint64_t>(step_)))
      evict(row);
}

/// Swapped out, the state moves to a spare block (without one the sequence stays); dropped, it is gone.
void Scheduler::evict(Row& row) {
  Sequence sequence = *row;
  const std::int32_t block = sequence.block;
  sequence.block = -1;
  if (rules_.preempt_by == ScheduleRecipe::Preempt::swap) {
    if (free_blocks_.empty()) return;
    sequence.block = take_block();
    event(EventKind::copy, sequence.block, block);
  }
  give_block(block);
  sequence.back = step_ + within(rules_.away, word(Decision::away, sequence.id, static_cast<std::uint64_t>(step_)));
  away_.push_back(sequence);
  row.reset();
  --running_;
}

void Scheduler::resume() {
  for (auto it = away_.begin(); it != away_.end();) {
    if (!room()) return;
    if (it->back > step_) {
      ++it;
      continue;
    }
    Sequence sequence = *it;
    it = away_.erase(it);
    const std::int32_t parked = std::exchange(sequence.block, take_block());
    ++sequence.resumed;
    if (parked >= 0) {
      event(EventKind::copy, sequence.block, parked);
      give_block(parked);
    } else {
      load(sequence);
    }
    seat(sequence);
  }
}

void Scheduler::arrive() {
  for (int place = running_; place < limit_ && room(); ++place) {
    if (!happens(Decision::arrive, rules_.arrival, static_cast<std::uint64_t>(step_),
                 static_cast<std::uint64_t>(place)))
      continue;
    Sequence sequence;
    sequence.id = next_id_++;
    if (rules_.length) sequence.length = within(*rules_.length, word(Decision::length, sequence.id));
    sequence.block = take_block();
    load(sequence);
    seat(sequence);
  }
}

/// Packed rows close up; then, at the rate asked for, all rows are permuted (Fisher-Yates).
void Scheduler::shuffle() {
  const auto occupied = [](const Row& row) { return row.has_value(); };
  const bool packed = rules_.placement == ScheduleRecipe::Placement::packed;
  if (packed) std::stable_partition(rows_.begin(), rows_.end(), occupied);
  const auto step = static_cast<std::uint64_t>(step_);
  if (!happens(Decision::shuffle, rules_.shuffle, step)) return;
  const std::size_t count = packed ? static_cast<std::size_t>(running_) : rows_.size();
  for (std::size_t i = count; i > 1; --i) {
    const auto j =
        static_cast<std::size_t>(within({0, static_cast<std::int64_t>(i) - 1}, word(Decision::shuffle, step, i)));
    std::swap(rows_[i - 1], rows_[j]);
  }
}

/// For each row of the step the seat (an entry of rows_) that runs in it, or -1.
std::vector<int> Scheduler::rows_of_step() {
  std::vector<int> seats;
  for (int seat = 0; seat < recipe_.rows; ++seat) {
    const Row& row = rows_[static_cast<std::size_t>(seat)];
    const bool runs = row && !happens(Decision::skip, rules_.skip, row->id, static_cast<std::uint64_t>(step_));
    if (runs || rules_.placement == ScheduleRecipe::Placement::sticky) seats.push_back(runs ? seat : -1);
  }
  return seats;
}

void Scheduler::emit(const std::vector<int>& seats) {
  const auto step = static_cast<std::uint64_t>(step_);
  for (int r = 0; r < recipe_.rows; ++r) {
    const auto at = static_cast<std::size_t>(r);
    const bool present = at < seats.size();
    const int seat = present ? seats[at] : -1;
    if (present || !rules_.stale_tail) last_index_[at] = sentinel(r);
    std::int64_t id = -1;
    std::uint32_t position = 0;
    if (seat >= 0) {
      Sequence& sequence = *rows_[static_cast<std::size_t>(seat)];
      last_index_[at] = sequence.block;
      id = sequence.id;
      position = sequence.position++;
    }
    out_.index.push_back(last_index_[at]);
    out_.sequence.push_back(id);
    out_.position.push_back(position);
  }
  out_.present.push_back(rules_.stale_tail ? static_cast<std::int32_t>(seats.size()) : recipe_.rows);
  out_.path.push_back(happens(Decision::path, rules_.mixed, step) ? Path::mixed : Path::decode);
}

/// An index that marks this row as inactive; where several do, either 0 or a negative one.
std::int32_t Scheduler::sentinel(int row) const {
  switch (recipe_.model.sentinel) {
    case Sentinel::zero:
      return 0;
    case Sentinel::minus_one:
      return -1;
    case Sentinel::nonpositive:
      break;
  }
  const std::uint32_t any =
      word(Decision::sentinel, static_cast<std::uint64_t>(step_), static_cast<std::uint64_t>(row));
  return -static_cast<std::int32_t>(within({0, 1}, any));
}

Schedule Scheduler::run() {
  for (; step_ < recipe_.steps; ++step_) {
    end_finished();
    preempt();
    resume();
    arrive();
    shuffle();
    emit(rows_of_step());
  }
  return std::move(out_);
}

}  // namespace

Schedule make_schedule(const Recipe& recipe) { return Scheduler(recipe).run(); }

}  // namespace gdnsim
