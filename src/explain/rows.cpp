#include "explain/rows.hpp"

namespace gdnsim::explaining {
namespace {

using Kept = std::map<std::int32_t, Words>;

template <class Use>
void each_row(StepEdit& edit, const Where& where, const Use& use) {
  for (int row = 0; row < edit.plan.rows(); ++row)
    if (where.has(edit.plan, row)) use(row, edit.plan.block[static_cast<std::size_t>(row)]);
}

Scope scope_of(const Scene& scene, const Where& where, std::int32_t block) {
  return {where.from, where.to, scene.bench.layer, where.row, block, -1};
}

Hypothesis make(const Scene& scene, const char* id, const Where& where, std::int32_t block, const std::string& what,
                const std::function<Twist(const Where&)>& twist) {
  Hypothesis hypothesis;
  hypothesis.mechanisms = {{id, scope_of(scene, where, block), what, "", Proof::rerun}};
  hypothesis.twists = {twist(where)};
  return hypothesis;
}

}  // namespace

Twist changed_around(const Where& where, const Change& change, const ChangeAfter& after) {
  auto kept = std::make_shared<Kept>();
  Twist twist;
  twist.before = [=](StepEdit& edit) {
    kept->clear();
    each_row(edit, where, [&](int, std::int32_t block) { (*kept)[block] = read_words(edit.pool, edit.layer, block); });
    if (!change) return;
    each_row(edit, where, [&](int row, std::int32_t block) {
      Words words = kept->at(block);
      change(edit, row, block, words);
      write_words(edit.pool, edit.layer, block, words);
    });
  };
  if (after)
    twist.after = [=](StepEdit& edit) {
      each_row(edit, where, [&](int row, std::int32_t block) {
        Words words = read_words(edit.pool, edit.layer, block);
        after(edit, row, block, kept->at(block), words);
        write_words(edit.pool, edit.layer, block, words);
      });
    };
  return twist;
}

Twist changed_before(const Where& where, const Change& change) { return changed_around(where, change, nullptr); }
Twist changed_after(const Where& where, const ChangeAfter& change) { return changed_around(where, nullptr, change); }

void propose_row(const Scene& scene, Hypotheses& out, const char* id, const RowStep& place, std::int32_t block,
                 const std::string& what, const std::function<Twist(const Where&)>& twist) {
  const std::int32_t own = scene.plan(place.step).block[static_cast<std::size_t>(place.row)];
  const std::int32_t named = block < 0 ? own : block;
  out.push_back(make(scene, id, {place.step, place.step, place.row}, named, what, twist));
  out.back().again = [=, &scene, what = what](const Where& where) {
    return make(scene, id, where, block, what, twist);  // the rows' own blocks differ: none is named
  };
}

}  // namespace gdnsim::explaining
