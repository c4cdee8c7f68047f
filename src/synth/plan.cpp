// Before each launch, in this order: finished sequences free their blocks, some are preempted, those away long enough come
// back, new ones arrive, rows are shuffled, and some sit the launch out. Events keep that order, so a block freed by one
// sequence can be taken by the next within the same step. A launch is one step, or one for each candidate token.
#include "synth/plan.hpp"

#include <algorithm>
#include <utility>

#include "gdnsim/error.hpp"
#include "synth/allocator.hpp"
#include "synth/values.hpp"

namespace gdnsim {
namespace {

/// Each decision has its own tag in the last counter word.
enum class Decision : std::uint8_t {
  length,
  arrive,
  shuffle,
  skip,
  preempt,
  away,
  block,
  path,
  sentinel,
  accept,
  plain,
  fork,
  parent
};

/// Whose tokens a forked sequence has up to a position.
struct Ancestor {
  std::uint32_t until, id;
};

struct Sequence {
  std::uint32_t id = 0;
  std::uint32_t position = 0;
  std::uint32_t resumed = 0;
  std::int64_t length = -1;          // -1: endless
  std::vector<std::int32_t> blocks;  // one for each candidate of a launch; empty while it is away
  std::size_t column = 0;            // where the state lies
  int accepted = 0;                  // tokens of its last launch; 0: none since it started
  std::int32_t parked = -1;          // where the state lies while it is away; -1: dropped
  std::int64_t back = 0;             // first step at which it may come back
  std::vector<Ancestor> ancestors;   // the oldest first

  std::uint32_t root() const { return ancestors.empty() ? id : ancestors.front().id; }
  std::uint32_t owner_of(std::uint32_t at) const {
    for (const Ancestor& ancestor : ancestors)
      if (at < ancestor.until) return ancestor.id;
    return id;
  }
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
  bool room() const { return running_ < limit_ && blocks_.has(columns_); }

  void event(EventKind kind, std::int32_t block, std::int64_t sequence, EventWhy why, std::int32_t source = -1);
  std::int32_t take_block(std::uint32_t sequence, std::size_t column, EventWhy why);
  void take_blocks(Sequence& sequence, EventWhy why);
  void give_block(std::int32_t block, std::uint32_t sequence, EventWhy why);
  void give_blocks(Sequence& sequence, EventWhy why);
  void load(const Sequence& sequence, EventWhy why);
  void seat(const Sequence& sequence);

  void end_finished();
  void preempt();
  void evict(Row& row);
  void resume();
  void come_back(Sequence& sequence);
  void arrive();
  const Sequence* parent_of(std::uint32_t id) const;
  void start(Sequence& sequence, const Sequence* parent);
  void shuffle();
  std::vector<int> rows_of_launch();
  int drafts_of_launch() const;
  int accepted_of(const Sequence& sequence, int drafts) const;
  void launch(const std::vector<int>& seats);
  void emit(const std::vector<int>& seats, int draft, int drafts);
  void emit_row(int row, int seat, int draft);
  std::int32_t sentinel(int row) const;

  const Recipe& recipe_;
  const ScheduleRecipe& rules_;
  const int limit_;
  const std::size_t columns_;  // blocks of a running sequence
  const bool owned_;           // the events say whose each block is
  std::int64_t step_ = 0;
  std::vector<Row> rows_;       // [B] who sits where
  std::vector<Sequence> away_;  // in the order they left
  Allocator blocks_;
  std::vector<std::int32_t> last_index_;  // [B] what each row's index was
  std::vector<int> accepting_;            // [B] tokens of this launch that each seat will keep
  std::uint32_t next_id_;
  std::uint64_t taken_ = 0;  // blocks taken so far: the address of the next choice
  int running_ = 0;
  Schedule out_;
};

std::int32_t lowest_block(const Model& model) { return model.sentinel == Sentinel::minus_one ? 0 : 1; }

Scheduler::Scheduler(const Recipe& recipe)
    : recipe_(recipe),
      rules_(recipe.schedule),
      limit_(recipe.schedule.running > 0 ? recipe.schedule.running : recipe.rows),
      columns_(static_cast<std::size_t>(recipe.schedule.speculative.drafts) + 1),
      owned_(recipe.schedule.allocator != Allocation::drawn),
      rows_(static_cast<std::size_t>(recipe.rows)),
      blocks_(recipe.schedule.allocator, lowest_block(recipe.model),
              recipe.model.num_blocks - lowest_block(recipe.model), static_cast<int>(columns_)),
      accepting_(static_cast<std::size_t>(recipe.rows)),
      next_id_(static_cast<std::uint32_t>(recipe.schedule.first_sequence)) {
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

void Scheduler::event(EventKind kind, std::int32_t block, std::int64_t sequence, EventWhy why, std::int32_t source) {
  Event event{static_cast<std::int32_t>(step_), -1, block, kind, source};
  if (owned_) event.sequence = sequence, event.why = why;
  out_.events.push_back(event);
}

std::int32_t Scheduler::take_block(std::uint32_t sequence, std::size_t column, EventWhy why) {
  const std::int32_t block = blocks_.take(sequence, static_cast<int>(column), [&](std::size_t count) {
    const auto last = static_cast<std::int64_t>(count) - 1;
    return static_cast<std::size_t>(within({0, last}, word(Decision::block, taken_++)));
  });
  if (owned_) event(EventKind::allocate, block, sequence, why);
  return block;
}

void Scheduler::take_blocks(Sequence& sequence, EventWhy why) {
  for (std::size_t column = 0; column < columns_; ++column)
    sequence.blocks.push_back(take_block(sequence.id, column, why));
  sequence.column = 0;
}

void Scheduler::give_block(std::int32_t block, std::uint32_t sequence, EventWhy why) {
  event(EventKind::free, block, sequence, why);
  blocks_.give(block);
}

void Scheduler::give_blocks(Sequence& sequence, EventWhy why) {
  for (std::int32_t block : sequence.blocks) give_block(block, sequence.id, why);
  sequence.blocks.clear();
}

/// Puts the sequence's starting state in its block.
void Scheduler::load(const Sequence& sequence, EventWhy why) {
  Event event{static_cast<std::int32_t>(step_), -1, sequence.blocks[0], EventKind::load};
  if (owned_) event.sequence = sequence.id, event.why = why;
  const bool again = rules_.preempt_by == ScheduleRecipe::Preempt::recompute;  // from where its oldest ancestor began
  out_.load(recipe_, event, {again ? sequence.root() : sequence.id, sequence.resumed});
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
    give_blocks(*row, EventWhy::finish);
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
  if (rules_.preempt_by == ScheduleRecipe::Preempt::swap) {
    if (!blocks_.has(1)) return;
    sequence.parked = take_block(sequence.id, 0, EventWhy::evict);
    event(EventKind::copy, sequence.parked, sequence.id, EventWhy::evict, sequence.blocks[sequence.column]);
  }
  give_blocks(sequence, EventWhy::evict);
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
    come_back(sequence);
    seat(sequence);
  }
}

void Scheduler::come_back(Sequence& sequence) {
  take_blocks(sequence, EventWhy::resume);
  if (const std::int32_t parked = std::exchange(sequence.parked, -1); parked >= 0) {
    ++sequence.resumed;
    event(EventKind::copy, sequence.blocks[0], sequence.id, EventWhy::resume, parked);
    return give_block(parked, sequence.id, EventWhy::resume);
  }
  sequence.accepted = 0;
  if (rules_.preempt_by == ScheduleRecipe::Preempt::recompute)
    sequence.position = 0;  // the same start, the same tokens
  else
    ++sequence.resumed;
  load(sequence, EventWhy::resume);
}

void Scheduler::arrive() {
  for (int place = running_; place < limit_ && room(); ++place) {
    if (!happens(Decision::arrive, rules_.arrival, static_cast<std::uint64_t>(step_),
                 static_cast<std::uint64_t>(place)))
      continue;
    Sequence sequence;
    sequence.id = next_id_++;
    if (rules_.length) sequence.length = within(*rules_.length, word(Decision::length, sequence.id));
    start(sequence, parent_of(sequence.id));
    seat(sequence);
  }
}

/// The running sequence that a new one is a fork of; nullptr: it is none's.
const Sequence* Scheduler::parent_of(std::uint32_t id) const {
  if (running_ == 0 || !happens(Decision::fork, rules_.fork, id)) return nullptr;
  std::int64_t which = within({0, running_ - 1}, word(Decision::parent, id));
  for (const Row& row : rows_)
    if (row && which-- == 0) return &*row;
  return nullptr;
}

void Scheduler::start(Sequence& sequence, const Sequence* parent) {
  take_blocks(sequence, parent == nullptr ? EventWhy::start : EventWhy::fork);
  if (parent == nullptr) return load(sequence, EventWhy::start);
  sequence.position = parent->position;
  if (sequence.length >= 0) sequence.length += parent->position;
  sequence.ancestors = parent->ancestors;
  sequence.ancestors.push_back({parent->position, parent->id});
  event(EventKind::copy, sequence.blocks[0], sequence.id, EventWhy::fork, parent->blocks[parent->column]);
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

/// For each row of the launch the seat (an entry of rows_) that runs in it, or -1.
std::vector<int> Scheduler::rows_of_launch() {
  std::vector<int> seats;
  for (int seat = 0; seat < recipe_.rows; ++seat) {
    const Row& row = rows_[static_cast<std::size_t>(seat)];
    const bool runs = row && !happens(Decision::skip, rules_.skip, row->id, static_cast<std::uint64_t>(step_));
    if (runs || rules_.placement == ScheduleRecipe::Placement::sticky) seats.push_back(runs ? seat : -1);
  }
  return seats;
}

/// Steps of the launch: one, or one for each candidate.
int Scheduler::drafts_of_launch() const {
  const SpeculativeRecipe& rules = rules_.speculative;
  if (rules.drafts == 0 || recipe_.steps - step_ <= rules.drafts) return 1;
  return happens(Decision::plain, rules.plain, static_cast<std::uint64_t>(step_)) ? 1 : rules.drafts + 1;
}

/// How many of its candidates a sequence keeps: at least the first, and none beyond its length.
int Scheduler::accepted_of(const Sequence& sequence, int drafts) const {
  const SpeculativeRecipe& rules = rules_.speculative;
  const auto step = static_cast<std::uint64_t>(step_);
  std::int64_t kept = 1;
  if (drafts > 1 && rules.accept) kept = within(*rules.accept, word(Decision::accept, sequence.id, step));
  if (drafts > 1 && !rules.accept)
    while (kept < drafts && happens(Decision::accept, rules.rate, sequence.id, step + static_cast<std::uint64_t>(kept)))
      ++kept;
  if (sequence.length >= 0) kept = std::min<std::int64_t>(kept, sequence.length - sequence.position);
  return static_cast<int>(kept);
}

void Scheduler::launch(const std::vector<int>& seats) {
  const int drafts = drafts_of_launch();
  for (int seat : seats)
    if (seat >= 0)
      accepting_[static_cast<std::size_t>(seat)] = accepted_of(*rows_[static_cast<std::size_t>(seat)], drafts);
  for (int draft = 0; draft < drafts; ++draft, ++step_) emit(seats, draft, drafts);
  for (int seat : seats) {
    if (seat < 0) continue;
    Sequence& sequence = *rows_[static_cast<std::size_t>(seat)];
    sequence.accepted = accepting_[static_cast<std::size_t>(seat)];
    sequence.position += static_cast<std::uint32_t>(sequence.accepted);
    sequence.column = static_cast<std::size_t>(sequence.accepted) - 1;
  }
}

void Scheduler::emit(const std::vector<int>& seats, int draft, int drafts) {
  for (int row = 0; row < recipe_.rows; ++row) {
    const auto at = static_cast<std::size_t>(row);
    const bool present = at < seats.size();
    if (present || !rules_.stale_tail) last_index_[at] = sentinel(row);
    emit_row(row, present ? seats[at] : -1, draft);
  }
  out_.present.push_back(rules_.stale_tail ? static_cast<std::int32_t>(seats.size()) : recipe_.rows);
  const bool mixed = drafts > 1 || happens(Decision::path, rules_.mixed, static_cast<std::uint64_t>(step_));
  out_.path.push_back(mixed ? Path::mixed : Path::decode);
  if (columns_ == 1) return;
  out_.draft.push_back(static_cast<std::int8_t>(draft));
  out_.last_draft.push_back(draft + 1 == drafts);
}

void Scheduler::emit_row(int row, int seat, int draft) {
  std::int64_t id = -1;
  Token token;
  std::int32_t source = -1, accepted = 0;
  if (seat >= 0) {
    const Sequence& sequence = *rows_[static_cast<std::size_t>(seat)];
    const auto column = static_cast<std::size_t>(draft);
    last_index_[static_cast<std::size_t>(row)] = sequence.blocks[column];
    id = sequence.id;
    const std::uint32_t position = sequence.position + static_cast<std::uint32_t>(draft);
    token = draft < accepting_[static_cast<std::size_t>(seat)] ? Token{sequence.owner_of(position), position}
                                                               : Token{sequence.id, rejected_position(draft, step_)};
    if (draft > 0) source = sequence.blocks[column - 1];
    if (draft == 0 && sequence.column > 0) source = sequence.blocks[sequence.column];
    if (draft == 0) accepted = sequence.accepted;
  }
  out_.index.push_back(last_index_[static_cast<std::size_t>(row)]);
  out_.sequence.push_back(id);
  out_.token.push_back(token);
  if (columns_ == 1) return;
  out_.source.push_back(source);
  out_.accepted.push_back(accepted);
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
  while (step_ < recipe_.steps) {
    end_finished();
    preempt();
    resume();
    arrive();
    shuffle();
    launch(rows_of_launch());
  }
  return std::move(out_);
}

}  // namespace

void Schedule::load(const Recipe& recipe, const Event& event, const Load& what) {
  Event made = event;
  if (recipe.states.start == StateRecipe::Start::zero) {
    made.kind = EventKind::zero;
    events.push_back(made);
    return;
  }
  const int layers = recipe.model.layers();
  const auto source = static_cast<std::int64_t>(loads.size()) * layers;
  if (source + layers > INT32_MAX)
    throw error("recipe: schedule: more than 2^31 load rows; expected fewer sequences or layers");
  const bool all = event.layer < 0;
  for (int layer = all ? 0 : event.layer; layer < (all ? layers : event.layer + 1); ++layer) {
    made.layer = layer;
    made.source = static_cast<std::int32_t>(source + layer);
    events.push_back(made);
  }
  loads.push_back(what);
}

Schedule make_schedule(const Recipe& recipe) {
  return recipe.script ? make_script_schedule(recipe) : Scheduler(recipe).run();
}

}  // namespace gdnsim
