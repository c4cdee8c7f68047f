#include "gdnsim/norm.hpp"

#include "gdnsim/backend.hpp"
#include "gdnsim/order.hpp"
#include "gdnsim/refused.hpp"

namespace gdnsim {
namespace {

/// A model whose layers have this norm: what a contract is defined for depends on its widths and types.
Model model_of(const NormSpec& spec) {
  Model model;
  model.H = model.HV = 1;
  model.K = model.V = spec.width;
  model.act_dtype = spec.act;
  return model;
}

void require_bytes(const char* operand, std::size_t found, std::int64_t elements, DType type) {
  const std::size_t expected = static_cast<std::size_t>(elements) * size_of(type);
  if (found != expected) throw error("norm: ", operand, ": expected ", expected, " bytes, found ", found);
}

}  // namespace

std::string describe(const NormSpec& spec) {
  std::ostringstream text;
  text << (spec.gated ? "gated norm of " : "norm of ") << spec.width << ' ' << name_of(spec.act);
  if (spec.gated) text << ", " << name_of(spec.gate);
  if (spec.weight_offset != 0) text << ", weight + " << spec.weight_offset;
  return text.str();
}

std::string undefined_because(const Contract& contract, const NormSpec& spec) {
  if (contract.norm_dot.lane == Lane::bytes16)
    return "contract '" + contract.name +
           "': the norm's lanes are 16 bytes of the state, and a norm alone has no state";
  if (contract.shapes != Shapes::any && !spec.gated)
    return "contract '" + contract.name + "' is defined for the gated norm, not for the decoder's (" + describe(spec) +
           ")";
  return undefined_because(contract, model_of(spec));
}

void require_defined(const NormArgs& args) {
  const NormSpec& spec = args.spec;
  if (spec.width < 1 || spec.width > kMaxRow)
    throw error("norm: width: expected 1 to ", kMaxRow, ", found ", spec.width);
  if (args.rows < 0) throw error("norm: rows: expected 0 or more, found ", args.rows);
  require_bytes("x", args.x.size(), args.rows * spec.width, spec.act);
  require_bytes("z", args.z.size(), spec.gated ? args.rows * spec.width : 0, spec.act);
  require_bytes("weight", args.weight.size(), spec.width, spec.act);
  if (const std::string reason = undefined_because(args.contract, spec); !reason.empty()) throw Refused(reason);
}

void Backend::norm(const NormArgs&, NormOutputs&) { throw error(name(), ": has no norm by itself"); }

}  // namespace gdnsim
