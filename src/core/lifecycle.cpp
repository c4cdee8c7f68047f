#include "gdnsim/lifecycle.hpp"

#include <algorithm>

#include "gdnsim/error.hpp"

namespace gdnsim {
namespace {

bool has_allocations(const Stream& stream) {
  return std::ranges::any_of(stream.events(), [](const Event& e) { return e.kind == EventKind::allocate; });
}

std::string number(std::int64_t value) { return std::to_string(value); }

std::string at_position(const Moment& moment) {
  return moment.position == Moment::kUnknown ? "at an unknown position" : "at position " + number(moment.position);
}

std::string sequence_words(std::int64_t sequence) {
  return sequence < 0 ? "an unknown sequence" : "sequence " + number(sequence);
}

Moment next_token(const Moment& from, std::int64_t sequence, std::uint64_t content) {
  return {sequence, from.position == Moment::kUnknown ? Moment::kUnknown : from.position + 1, content};
}

}  // namespace

Lifecycle::Lifecycle(const Stream& stream, std::string where, int layer)
    : stream_(stream),
      where_(std::move(where)),
      layer_(layer),
      owned_(has_allocations(stream)),
      strict_(owned_ || stream.version() >= 2) {}

const BlockLife& Lifecycle::life(std::int32_t block) const {
  static const BlockLife untouched;
  const auto found = blocks_.find(block);
  return found == blocks_.end() ? untouched : found->second;
}

// ---- what a line of refusal says

std::string Lifecycle::words(const StepPlan& plan, const Row& row) const {
  return where_ + ": step " + number(plan.step) + ", row " + number(static_cast<std::int64_t>(row.row)) + " (" +
         sequence_words(row.sequence) + "): ";
}

std::string Lifecycle::words(const Event& event, std::int64_t at) const {
  return where_ + ": events[" + number(at) + "]: step " + number(event.step) + ": " + std::string(name_of(event.kind)) +
         " of block " + number(event.block) + ": ";
}

std::string Lifecycle::owner_words(std::int32_t block) const {
  const BlockLife& life = this->life(block);
  const std::string name = "block " + number(block);
  if (block == 0 && stream_.model().sentinel != Sentinel::minus_one) return name + " is the null block";
  if (life.since < 0) return name + " is free (it was never allocated)";
  if (life.allocated)
    return name + " is allocated to " + sequence_words(life.owner) + " since step " + number(life.since);
  return name + " is free (" + sequence_words(life.owner) + " had it until step " + number(life.since) + ")";
}

std::string Lifecycle::describe(std::int32_t block) const {
  const BlockLife& life = this->life(block);
  const Moment &recurrent = life.recurrent, &conv = life.conv;
  std::string text = "block " + number(block);
  if (owned_ && life.allocated && life.owner != recurrent.sequence)
    text += " (allocated to " + sequence_words(life.owner) + ")";
  if (recurrent.content == 0 && conv.content == 0) return text + ": as the pool began";
  const std::string of = sequence_words(recurrent.sequence);
  if (recurrent.sequence == conv.sequence)
    return text + ": " + of + ", recurrent " + at_position(recurrent) + ", conv " + at_position(conv);
  return text + ": recurrent of " + of + " " + at_position(recurrent) + ", conv of " + sequence_words(conv.sequence) +
         " " + at_position(conv);
}

std::string Lifecycle::last_writer(std::int32_t block) const {
  const BlockLife& life = this->life(block);
  if (life.written_step < 0) return "nobody";
  if (life.written_event < 0) {
    const bool freed = owned_ && !life.allocated && life.owner == life.written_by && life.since >= life.written_step;
    const bool gone = owned_ && life.owner != life.written_by;
    const std::string sequence = life.written_by < 0 ? "" : ", sequence " + number(life.written_by);
    return "row " + number(life.written_row) + " of step " + number(life.written_step) + sequence +
           (freed  ? " (freed at step " + number(life.since) + ")"
            : gone ? " (which no longer has it)"
                   : "");
  }
  const Event& event = stream_.events()[static_cast<std::size_t>(life.written_event)];
  std::string what(name_of(event.kind));
  if (event.kind == EventKind::copy) what += " of block " + number(event.source);
  return "event " + number(life.written_event) + " (" + what + ") at step " + number(life.written_step);
}

// ---- events

void Lifecycle::event(const Event& event, std::int64_t number) {
  last_event_ = number;
  next_event_ = static_cast<std::size_t>(number) + 1;
  if (owned_) require_event_owner(event, number);
  BlockLife& life = at(event.block);
  switch (event.kind) {
    case EventKind::allocate:
      life.allocated = true, life.owner = event.sequence, life.since = event.step;
      return;
    case EventKind::free:
      life.allocated = false, life.since = event.step;
      return;
    default:
      if (layer_ < 0 || event.layer < 0 || event.layer == layer_) fill(event, number);
  }
}

/// Who has a block may fill and free it; a free one may only be allocated, or zeroed as some engines do on release.
void Lifecycle::require_event_owner(const Event& event, std::int64_t number) const {
  const BlockLife& life = this->life(event.block);
  const bool takes = event.kind == EventKind::allocate, gives = event.kind == EventKind::free;
  if ((takes || gives) && event.layer != -1)
    throw error(words(event, number), "expected layer -1 (a block is a sequence's in every layer), found ",
                event.layer);
  if (takes && life.allocated)
    throw error(words(event, number), "to ", sequence_words(event.sequence), ", but ", owner_words(event.block));
  if (!takes && !life.allocated && event.kind != EventKind::zero)
    throw error(words(event, number), owner_words(event.block));
  if (!takes && life.allocated && event.sequence >= 0 && life.owner >= 0 && event.sequence != life.owner)
    throw error(words(event, number), "it is sequence ", event.sequence, "'s event, but ", owner_words(event.block));
  if (event.kind == EventKind::copy && !this->life(event.source).allocated)
    throw error(words(event, number), "its source, ", owner_words(event.source));
}

void Lifecycle::fill(const Event& event, std::int64_t number) {
  const Moment fresh{event.sequence, event.kind == EventKind::load ? Moment::kUnknown : 0, ++contents_};
  const BlockLife from = event.kind == EventKind::copy ? life(event.source) : BlockLife{};
  BlockLife& to = at(event.block);
  to.recurrent = event.kind == EventKind::copy ? from.recurrent : fresh;
  to.conv = event.kind == EventKind::copy ? from.conv : fresh;
  to.written_step = event.step, to.written_event = number, to.written_by = event.sequence, to.written_row = -1;
}

// ---- steps

void Lifecycle::step(const StepPlan& plan) {
  require_launch(plan);
  if (strict_) require_named(plan);
  if (strict_) require_one_row(plan);
  std::vector<Row> rows;
  for (std::size_t row = 0; row < plan.block.size(); ++row)
    if (plan.block[row] >= 0) rows.push_back({row, plan.sequence[row], plan.block[row], plan.start(row)});
  for (const Row& row : rows) {
    if (owned_) {
      require_owner(plan, row, row.block);
      if (row.start != row.block) require_owner(plan, row, row.start);
    }
    if (plan.draft > 0) require_draft(plan, row);
    if (plan.draft == 0 && !plan.accepted.empty()) require_accepted(plan, row);
  }
  for (const Row& row : rows) write(plan, row);
  before_ = plan;
  next_step_ = plan.step + 1;
  last_event_ = -1;
}

void Lifecycle::require_launch(const StepPlan& plan) const {
  const bool goes_on = before_.step + 1 == plan.step && !before_.last_draft;
  const int expected = goes_on ? before_.draft + 1 : 0;
  if (plan.draft != expected)
    throw error(where_, ": draft[", plan.step, "]: expected ", expected,
                goes_on ? ", the launch goes on" : ", a launch begins", ", found ", plan.draft);
  if (plan.draft > 0 && last_event_ >= 0)
    throw error(where_, ": events[", last_event_, "]: step ", plan.step, " is within the launch that began at step ",
                plan.step - plan.draft, ": nothing can happen to a block there");
}

/// A row that is there and belongs to a sequence is meant to have a block.
void Lifecycle::require_named(const StepPlan& plan) const {
  for (std::size_t row = 0; row < static_cast<std::size_t>(plan.present); ++row)
    if (plan.sequence[row] >= 0 && plan.block[row] < 0)
      throw error(where_, ": step ", plan.step, ": row ", row, " names the null block ", plan.index[row],
                  ", but it belongs to sequence ", plan.sequence[row]);
}

/// A sequence has one state to go on from: with two rows nobody could say which of them its next token follows.
void Lifecycle::require_one_row(const StepPlan& plan) const {
  std::unordered_map<std::int64_t, std::size_t> first;
  for (std::size_t row = 0; row < plan.block.size(); ++row) {
    if (plan.block[row] < 0 || plan.sequence[row] < 0) continue;
    const auto [other, fresh] = first.emplace(plan.sequence[row], row);
    if (!fresh)
      throw error(where_, ": step ", plan.step, ": rows ", other->second, " and ", row, " both belong to sequence ",
                  plan.sequence[row], ": expected one row a step (its candidates are steps of one launch)");
  }
}

void Lifecycle::require_owner(const StepPlan& plan, const Row& row, std::int32_t block) const {
  const BlockLife& life = this->life(block);
  if (life.allocated && (life.owner < 0 || row.sequence < 0 || life.owner == row.sequence)) return;
  throw error(words(plan, row), owner_words(block), block == row.block ? "" : ", and the row would go on from it");
}

/// Within a launch a row goes on from the block that the draft before left.
void Lifecycle::require_draft(const StepPlan& plan, const Row& row) const {
  const std::int32_t expected = before_.block[row.row];
  if (expected < 0) throw error(words(plan, row), "draft ", plan.draft, " of a row that had no draft ", plan.draft - 1);
  if (before_.sequence[row.row] != row.sequence)
    throw error(words(plan, row), "draft ", plan.draft - 1, " of this row was ",
                sequence_words(before_.sequence[row.row]), "'s");
  if (row.start != expected)
    throw error(words(plan, row), "draft ", plan.draft, " goes on from block ", row.start, ": expected block ",
                expected, ", where draft ", plan.draft - 1, " lies");
}

/// The block that a row starts from was filled since its sequence's last launch: with a reset, a loaded or a forked state, which may
/// be older than the launch. A copy of what the sequence itself left earlier is none of these.
bool Lifecycle::restarted(const LastLaunch& last, const Row& row) const {
  const BlockLife& life = this->life(row.start);
  const Moment& state = life.recurrent;
  const bool filled = life.written_event >= 0 && life.written_step > last.step;
  const bool other =
      state.content > last.columns.back().recurrent.content || (state.content != 0 && state.sequence != row.sequence);
  return (filled && other) || (owned_ && life.since > last.step);
}

/// The row goes on from what its sequence's last launch left after as many drafts as were accepted.
void Lifecycle::require_accepted(const StepPlan& plan, const Row& row) const {
  const std::int32_t accepted = plan.accepted[row.row];
  const auto last = launches_.find(row.sequence);
  if (last == launches_.end() || restarted(last->second, row)) return;
  const auto& columns = last->second.columns;
  if (accepted == 0 && columns.size() == 1) return;  // an ordinary step has nothing to count
  if (accepted < 1 || accepted > static_cast<std::int32_t>(columns.size()))
    throw error(words(plan, row), "accepted ", accepted, ": expected 1..", columns.size(),
                ", the tokens of its launch at step ", last->second.step);
  const Column& column = columns[static_cast<std::size_t>(accepted - 1)];
  const BlockLife& start = life(row.start);
  if (start.recurrent == column.recurrent && start.conv == column.conv) return;
  throw error(words(plan, row), "goes on from ", describe(row.start), ": expected block ", column.block,
              ", where the launch at step ", last->second.step, " left token ", accepted, " of ", columns.size());
}

void Lifecycle::write(const StepPlan& plan, const Row& row) {
  const BlockLife from = life(row.start);
  BlockLife& to = at(row.block);
  const bool ran = plan.path != Path::opaque;
  const std::uint64_t content = ++contents_;
  to.recurrent =
      ran ? next_token(from.recurrent, row.sequence, content) : Moment{row.sequence, Moment::kUnknown, content};
  to.conv = ran ? next_token(from.conv, row.sequence, content) : to.recurrent;
  to.written_step = plan.step, to.written_event = -1, to.written_by = row.sequence;
  to.written_row = static_cast<std::int64_t>(row.row);
  if (row.sequence < 0) return;
  LastLaunch& launch = launches_[row.sequence];
  if (plan.draft == 0) launch = {plan.step, {}};
  launch.columns.push_back({row.block, to.recurrent, to.conv});
}

void Lifecycle::events_before(std::int64_t step) {
  const auto events = stream_.events();
  while (next_event_ < events.size() && events[next_event_].step <= step)
    event(events[next_event_], static_cast<std::int64_t>(next_event_));
}

void Lifecycle::go_to(std::int64_t step) {
  for (std::int64_t at = next_step_; at < step; ++at) {
    events_before(at);
    this->step(stream_.plan(at));
  }
}

void Lifecycle::go_into(std::int64_t step) {
  go_to(step);
  events_before(step);
}

void Lifecycle::copy_recurrent(std::int32_t from, std::int32_t to) { at(to).recurrent = life(from).recurrent; }
void Lifecycle::copy_conv(std::int32_t from, std::int32_t to) { at(to).conv = life(from).conv; }

void require_life(const Stream& stream, const std::string& where) {
  const bool apart =
      std::ranges::any_of(stream.events(), [](const Event& e) { return e.layer >= 0 && changes_contents(e.kind); });
  for (int layer = apart ? 0 : -1; layer < (apart ? stream.model().layers() : 0); ++layer)
    Lifecycle(stream, where, layer).go_to(stream.steps());
}

}  // namespace gdnsim
