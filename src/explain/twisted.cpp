#include "explain/twisted.hpp"

#include <algorithm>
#include <cstring>
#include <map>

namespace gdnsim::explaining {
namespace {

/// Copies one row of every tap.
void take_row(const Model& model, int row, const StepOutputs& from, StepOutputs& to) {
  for (std::size_t i = 0; i < kTaps; ++i) {
    if (!to.want.has(static_cast<Tap>(i)) || from.taps[i].empty()) continue;
    const std::size_t bytes = shape_of(static_cast<Tap>(i), model).bytes(), at = static_cast<std::size_t>(row) * bytes;
    std::memcpy(to.taps[i].data() + at, from.taps[i].data() + at, bytes);
  }
}

const Contract* contract_of(const TwistList& twists, const StepPlan& plan, int row) {
  const Contract* found = nullptr;
  for (const Twist* twist : twists)
    if (twist->contract)
      if (const Contract* contract = twist->contract(plan, row)) found = contract;
  return found;
}

}  // namespace

std::string words_of(Part part) {
  constexpr const char* words[] = {"recurrent state", "conv state", "state"};
  return words[static_cast<std::size_t>(part)];
}

void take(Part part, const Words& from, Words& to) {
  if (has_recurrent(part)) to.recurrent = from.recurrent;
  if (has_conv(part)) to.conv = from.conv;
}

TwistedStream::TwistedStream(Stream& stream, const TwistList& twists, int layer)
    : StreamView(stream),
      layer_(layer),
      events_(stream.events().begin(), stream.events().end()),
      params_(stream.params(layer)) {
  for (const Twist* twist : twists) {
    if (twist->event >= 0) events_[static_cast<std::size_t>(twist->event)].kind = EventKind::free;
    if (twist->params) twist->params(params_);
  }
}

/// Rows of one contract at a time; rows of the others are inactive meanwhile, and what they hold is taken from their own turn.
void TwistedBackend::run_rows(const StepArgs& args, const StepInputs& inputs, Pool& pool, StepOutputs& outputs) {
  std::map<const Contract*, std::vector<int>> groups{{nullptr, {}}};
  const StepPlan& base = args.plan;
  for (int row = 0; row < base.rows(); ++row) {
    const Contract* contract = contract_of(twists_, args.plan, row);
    groups[contract].push_back(row);
  }
  const auto only = [&](const std::vector<int>& rows) {
    StepPlan plan = base;
    std::ranges::fill(plan.block, -1);
    for (int row : rows) plan.block[static_cast<std::size_t>(row)] = base.block[static_cast<std::size_t>(row)];
    return plan;
  };
  const StepPlan plain = only(groups[nullptr]);
  backend_.step({args.layer, plain, inputs, args.contract}, pool, outputs);
  for (const auto& [contract, rows] : groups) {
    if (contract == nullptr) continue;
    const StepPlan plan = only(rows);
    StepOutputs apart;
    apart.want = outputs.want;
    backend_.step({args.layer, plan, inputs, *contract}, pool, apart);
    for (int row : rows) take_row(pool.model(), row, apart, outputs);
  }
}

/// In row order: the later of two writers wins.
void TwistedBackend::run_padded(const StepArgs& args, const StepInputs& inputs, const PaddedRows& padded, Pool& pool,
                                StepOutputs& outputs) {
  for (const auto& [row, before] : padded) {
    StepPlan plan = args.plan;
    std::ranges::fill(plan.block, -1);
    plan.block[static_cast<std::size_t>(row.row)] = row.block;
    plan.draft = 0, plan.last_draft = true;  // it had no candidate before: it goes on from what its block stores
    const Words now = read_words(pool, args.layer, row.block);
    if (row.parallel) write_words(pool, args.layer, row.block, before);
    StepOutputs apart;
    apart.want = outputs.want;
    const Contract* contract = contract_of(twists_, args.plan, row.row);
    backend_.step({args.layer, plan, inputs, contract == nullptr ? args.contract : *contract}, pool, apart);
    if (row.keep_outputs) take_row(pool.model(), row.row, apart, outputs);
    Words after = now;
    if (row.writes) take(row.part, read_words(pool, args.layer, row.block), after);
    write_words(pool, args.layer, row.block, after);
  }
}

void TwistedBackend::step(const StepArgs& args, Pool& pool, StepOutputs& outputs) {
  const bool any = std::ranges::any_of(twists_, [](const Twist* t) { return t->before != nullptr; });
  StepInputs changed;
  if (any) changed = args.inputs;
  StepInputs& inputs = any ? changed : const_cast<StepInputs&>(args.inputs);  // without `before` nobody changes them
  StepEdit edit{args.plan, args.layer, pool, inputs, outputs, still};
  for (const Twist* twist : twists_)
    if (twist->before) twist->before(edit);
  PaddedRows padded;
  for (const Twist* twist : twists_)
    if (twist->padded)
      for (const PaddedRow& row : twist->padded(args.plan)) padded.emplace_back(row, edit.read_still(row.block));
  run_rows(args, inputs, pool, outputs);
  run_padded(args, inputs, padded, pool, outputs);
  for (const Twist* twist : twists_)
    if (twist->after) twist->after(edit);
}

}  // namespace gdnsim::explaining
