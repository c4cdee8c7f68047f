#include "replay/fed_apart.hpp"

#include <algorithm>

#include "gdnsim/error.hpp"
#include "gdnsim/log.hpp"
#include "gdnsim/recipe.hpp"
#include "gdnsim/trace.hpp"
#include "log/events.hpp"
#include "trace/digest.hpp"

namespace gdnsim {
namespace {

std::string source_of(Recording& recording) {
  if (auto* trace = dynamic_cast<Trace*>(&recording)) return trace->source();
  const auto* log = dynamic_cast<const Log*>(&recording);
  return log == nullptr ? "" : log->header().source;
}

bool same_inputs(Trace& a, Trace& b, int layer, const Slice& slice) {
  const int layer_b = layer_in(a, b, layer);
  if (a.params(layer) != b.params(layer_b) || !std::ranges::equal(a.events(), b.events(), same_but_load_row))
    return false;
  StepInputs x, y;
  for (std::size_t i = 0; i < a.events().size(); ++i) {
    const Event& event =
        a.events()[i];  // what a slice from step 0 starts from; later a state is not vouched for anyway
    if (event.kind != EventKind::load || event.step != 0 || slice.first_step != 0 || !names(event, layer)) continue;
    a.load_row(event.source, x.a, x.b);
    b.load_row(b.events()[i].source, y.a, y.b);
    if (x.a != y.a || x.b != y.b) return false;
  }
  for (std::int64_t step = slice.first_step; step < slice.last_step; ++step) {
    a.inputs(step, layer, x);
    b.inputs(step, layer_b, y);
    if (x.mixed_qkv != y.mixed_qkv || x.a != y.a || x.b != y.b || x.z != y.z) return false;
  }
  return true;
}

/// What a recipe feeds in, element by element; beyond this many nobody waits for a diff that makes them all.
constexpr double kMostMade = 1 << 27;

double inputs_of(const Recipe& recipe) {
  const Model& model = recipe.model;
  const double row =
      static_cast<double>(model.dim()) + 2.0 * model.HV + (recipe.inputs.z ? 1.0 * model.HV * model.V : 0);
  return row * recipe.rows * model.layers() * static_cast<double>(recipe.steps);
}

/// What a source feeds in, in the words of a trace. A recipe is made to tell; nothing where that is too much.
std::optional<std::string> fed_by(const std::string& source) {
  if (source.starts_with("trace:")) return source;
  if (!source.starts_with("{")) return std::nullopt;
  try {
    const Recipe recipe = parse_recipe(source, "source");
    if (inputs_of(recipe) > kMostMade) return std::nullopt;
    return "trace:" + content_digest_of(*make_recipe_stream(recipe));
  } catch (const Error&) {
    return std::nullopt;  // of a version that is not ours
  }
}

}  // namespace

int layer_in(const Recording& a, const Recording& b, int layer) {
  const std::int32_t id = a.model().layer_ids[static_cast<std::size_t>(layer)];
  for (int other : b.layers())
    if (b.model().layer_ids[static_cast<std::size_t>(other)] == id) return other;
  return -1;
}

std::string fed_apart(Recording& a, Recording& b, const Slice& asked, const Slice& slice) {
  const std::string differ = "the two were not fed the same: inputs, parameters, events or batches differ",
                    unknown = "whether the two were fed the same takes ";
  auto *x = dynamic_cast<Trace*>(&a), *y = dynamic_cast<Trace*>(&b);
  if (!asked.whole() && x != nullptr && y != nullptr) {
    const auto same = [&](int layer) { return same_inputs(*x, *y, layer, slice); };
    return std::ranges::all_of(slice.layers, same) ? "" : differ;
  }
  if (!asked.whole() && (x != nullptr || y != nullptr)) return unknown + "reading the whole trace: not looked at";
  const std::string of_a = source_of(a), of_b = source_of(b);
  if (of_a == of_b && !of_a.empty()) return "";
  const auto fed_a = fed_by(of_a), fed_b = fed_a ? fed_by(of_b) : std::nullopt;
  if (!fed_a || !fed_b)
    return unknown + "making all that the recipe of one feeds in, too much or unknown here: not looked at";
  return *fed_a == *fed_b ? "" : differ;
}

}  // namespace gdnsim
