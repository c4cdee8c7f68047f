// Coordinate descent over contracts, and the choices it goes through.
#include "fit/search.hpp"

#include <algorithm>

#include "gdnsim/order.hpp"

namespace gdnsim::fitting {
namespace {

/// What an order comes down to for its row: choices that cannot show are set to their first value.
DotOrder plain(DotOrder order) {
  if (order.lane == 1) order.order = LaneOrder::sequential, order.product = Product::rounded;
  if (order.exchange == Exchange::fused) order.product = Product::rounded;
  if (order.order == LaneOrder::sequential) order.sequential_from = kTileRows;
  if (order.lanes <= order.group) order.groups = Tree::sequential;
  if (order.lanes == 1 && order.exchange == Exchange::plain) order.tree = Tree::sequential, order.group = 1;
  return order;
}

/// A fused exchange is defined for lanes of 1 and groups of 2 to 128 only.
bool possible(const Dot& dot) {
  return dot.exchange == Exchange::plain || (dot.lane == Lane::one && dot.group >= 2 && dot.group <= 128);
}

template <class Use>
void for_each_dot(const Use& use) {
  constexpr Tree trees[] = {Tree::widest, Tree::narrowest, Tree::sequential};
  for (Lane lane :
       {Lane::one, Lane::two, Lane::four, Lane::eight, Lane::sixteen, Lane::row_32nd, Lane::bytes16, Lane::whole})
    for (int group : {0, 32, 16, 8, 4, 2, 64, 128})
      for (LaneOrder order : {LaneOrder::sequential, LaneOrder::swapped})
        for (Product product : {Product::rounded, Product::fma})
          for (Exchange exchange : {Exchange::plain, Exchange::fused})
            for (Tree tree : trees)
              for (Tree groups : trees) use(Dot{lane, order, product, exchange, tree, group, groups});
}

}  // namespace

Dimension field_dimension(const std::string& field) {
  Dimension dimension{field, {}};
  for (const std::string& value : contract_field_values(field))
    dimension.values.push_back([field, value](Contract& contract) { set_contract_field(contract, field, value); });
  return dimension;
}

std::vector<Functions> all_functions() {
  std::vector<Functions> all;
  for (Exp exp : {Exp::exact, Exp::ex2})
    for (Div div : {Div::ieee, Div::full, Div::reciprocal})
      for (Negate negate : {Negate::sign, Negate::subtract}) all.push_back({exp, div, negate});
  return all;
}

Functions functions_of(const Contract& contract) { return {contract.exp, contract.div, contract.negate}; }

void set_functions(Contract& contract, const Functions& functions) {
  contract.exp = functions.exp;
  contract.div = functions.div;
  contract.negate = functions.negate;
}

Dimension functions_dimension(const std::vector<Functions>& allowed) {
  Dimension dimension{"exp, div, negate", {}};
  for (const Functions& functions : allowed)
    dimension.values.push_back([functions](Contract& contract) { set_functions(contract, functions); });
  return dimension;
}

Dimension dot_dimension(const std::string& name, Dot Contract::*dot, int n, const DotContext& context) {
  Dimension dimension{name, {}};
  std::vector<DotOrder> seen;
  const auto add = [&](const Dot& value) {
    if (!possible(value)) return;
    const DotOrder order = plain(resolve(value, n, context));
    if (std::ranges::find(seen, order) != seen.end()) return;
    seen.push_back(order);
    dimension.values.push_back([dot, value](Contract& contract) { contract.*dot = value; });
  };
  for (const Contract& preset : contract_presets()) add(preset.*dot);
  for_each_dot(add);
  return dimension;
}

Score judge(const std::vector<Probe*>& probes, Backend& backend, const Contract& contract, std::uint64_t limit) {
  Score score = evaluate(*probes.front(), backend, contract, limit > kFirstProbe ? limit - kFirstProbe : 1);
  if (score.cost > 0) {
    score.cost += kFirstProbe;
    return score;
  }
  for (std::size_t i = 1; i < probes.size() && score.cost < limit; ++i) {
    const Score more = evaluate(*probes[i], backend, contract, limit - score.cost);
    score.cost += more.cost, score.compared += more.compared, score.differing += more.differing;
  }
  return score;
}

Found Search::try_one(const Contract& contract) {
  ++trials_;
  return {contract, judge(probes_, backend_, contract)};
}

bool Search::better(Found& found, const Contract& contract) {
  if (contract == found.contract || done(found)) return false;
  ++trials_;
  const Score score = judge(probes_, backend_, contract, found.score.cost);
  if (score.cost >= found.score.cost) return false;
  found = {contract, score};
  return true;
}

bool Search::try_values(Found& found, const Dimension& dimension) {
  bool any = false;
  for (const auto& set : dimension.values) {
    Contract contract = found.contract;
    set(contract);
    any |= better(found, contract);
  }
  return any;
}

bool Search::try_pairs(Found& found, const Dimension& a, const Dimension& b) {
  const Contract from = found.contract;
  for (const auto& set_a : a.values)
    for (const auto& set_b : b.values) {
      Contract contract = from;
      set_a(contract), set_b(contract);
      if (better(found, contract)) return true;
      if (done(found)) return false;
    }
  return false;
}

bool Search::exact(Found& found, const Contract& contract) {
  if (deadline_.over()) return false;
  ++trials_;
  const Score score = judge(probes_, backend_, contract, 1);
  if (score.cost == 0) found = {contract, score};
  return score.cost == 0;
}

bool Search::exact_pair(Found& found, const Dimension& a, const Dimension& b) {
  const Contract from = found.contract;
  for (const auto& first : a.values)
    for (const auto& second : b.values) {
      Contract contract = from;
      first(contract), second(contract);
      if (exact(found, contract)) return true;
      if (deadline_.over()) return false;
    }
  return false;
}

bool Search::exact_nearby(Found& found, const std::vector<Dimension>& single, const std::vector<Dimension>& dots,
                          Near near) {
  if (found.score.cost == 0) return true;
  const Contract from = found.contract;
  for (const auto* dimensions : {&single, &dots})
    for (const Dimension& dimension : *dimensions)
      for (const auto& set : dimension.values) {
        Contract contract = from;
        set(contract);
        if (exact(found, contract)) return true;
      }
  for (std::size_t i = 0; near >= Near::two_fields && i < single.size(); ++i)
    for (std::size_t j = i + 1; j < single.size(); ++j)
      if (exact_pair(found, single[i], single[j])) return true;
  for (std::size_t i = 0; near >= Near::two && i < dots.size(); ++i)
    for (const Dimension& field : single)
      if (exact_pair(found, field, dots[i])) return true;
  for (std::size_t i = 0; near >= Near::two && i < dots.size(); ++i)
    for (std::size_t j = i + 1; j < dots.size(); ++j)
      if (exact_pair(found, dots[i], dots[j])) return true;
  return false;
}

bool Search::round(Found& found, const std::vector<Dimension>& single, const std::vector<Dimension>& dots) {
  bool any = false;
  for (const Dimension& dimension : single) any |= try_values(found, dimension);
  for (const Dimension& dimension : dots) any |= try_values(found, dimension);
  return any;
}

bool Search::escape(Found& found, const std::vector<Dimension>& single, const std::vector<Dimension>& dots) {
  for (std::size_t i = 0; i < single.size(); ++i)
    for (std::size_t j = i + 1; j < single.size(); ++j)
      if (try_pairs(found, single[i], single[j])) return true;
  for (const Dimension& a : single)
    for (const Dimension& b : dots)
      if (try_pairs(found, a, b)) return true;
  return false;
}

void Search::descend(Found& found, const std::vector<Dimension>& single, const std::vector<Dimension>& dots) {
  while (!done(found) && round(found, single, dots)) continue;
}

void Search::descend_by_pairs(Found& found, const std::vector<Dimension>& single, const std::vector<Dimension>& dots) {
  while (!done(found) && (round(found, single, dots) || escape(found, single, dots))) continue;
}

}  // namespace gdnsim::fitting
