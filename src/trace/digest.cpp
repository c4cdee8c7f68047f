#include "trace/digest.hpp"

#include <xxhash.h>

#include <bit>
#include <cstdio>
#include <memory>
#include <new>

namespace gdnsim {

namespace {

/// Hashes pieces, each preceded by its length as 64-bit little-endian bytes, so that no two contents run together.
class Hasher {
 public:
  Hasher() : state_(XXH3_createState(), &XXH3_freeState) {
    if (!state_) throw std::bad_alloc();
    XXH3_128bits_reset(state_.get());
  }
  void bytes(std::span<const std::byte> piece) {
    const std::uint64_t length = piece.size();
    XXH3_128bits_update(state_.get(), &length, sizeof length);
    if (!piece.empty()) XXH3_128bits_update(state_.get(), piece.data(), piece.size());
  }
  void text(std::string_view piece) { bytes(std::as_bytes(std::span(piece))); }
  void number(std::int64_t value) { bytes(std::as_bytes(std::span(&value, 1))); }
  template <class T>
  void vector(const std::vector<T>& values) {
    bytes(std::as_bytes(std::span(values)));
  }
  std::string hex() const {
    const XXH128_hash_t hash = XXH3_128bits_digest(state_.get());
    char text[33];
    std::snprintf(text, sizeof text, "%016llx%016llx", static_cast<unsigned long long>(hash.high64),
                  static_cast<unsigned long long>(hash.low64));
    return text;
  }

 private:
  std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state_;
};

static_assert(std::endian::native == std::endian::little, "digests are defined on little-endian words");

void add_model(Hasher& hash, const Model& model, int version) {
  for (const std::int64_t count :
       {std::int64_t{model.H}, std::int64_t{model.HV}, std::int64_t{model.K}, std::int64_t{model.V},
        std::int64_t{model.W}, model.num_blocks, std::int64_t{model.use_qk_l2norm}})
    hash.number(count);
  hash.number(std::bit_cast<std::uint32_t>(model.scale));
  hash.number(model.norm_eps ? std::int64_t{std::bit_cast<std::uint32_t>(*model.norm_eps)} : -1);
  for (const std::string_view word :
       {name_of(model.activation), name_of(model.state_dtype), name_of(model.conv_state_dtype),
        name_of(model.act_dtype), name_of(model.sentinel), name_of(model.norm_gate), name_of(model.inactive_conv_out),
        name_of(model.inactive_core_out)})
    hash.text(word);
  hash.vector(model.layer_ids);
  if (version < 2) return;
  for (const std::int64_t number : {model.block_stride, model.conv_block_stride, std::int64_t{model.index_bits}})
    hash.number(number);
}

void add_params(Hasher& hash, const LayerParams& params) {
  hash.vector(params.A_log);
  hash.vector(params.dt_bias);
  hash.vector(params.conv_weight);
  hash.vector(params.conv_bias);
  hash.vector(params.norm_weight);
}

void add_plan(Hasher& hash, const StepPlan& plan, int version) {
  hash.number(static_cast<std::int64_t>(plan.path));
  hash.number(plan.present);
  hash.vector(plan.index);
  hash.vector(plan.sequence);
  if (plan.launch_tokens != 0) hash.text("launch_tokens"), hash.number(plan.launch_tokens);
  if (version < 2) return;
  hash.number(plan.draft);
  // Nobody moves, or nothing is known: the same whether a file says it row by row or not at all.
  hash.vector(plan.source.empty() ? std::vector<std::int32_t>(plan.block.size(), -1) : plan.source);
  hash.vector(plan.accepted.empty() ? std::vector<std::int32_t>(plan.block.size(), 0) : plan.accepted);
}

void add_events(Hasher& hash, Stream& stream) {
  hash.number(static_cast<std::int64_t>(stream.events().size()));
  Bytes recurrent, conv;
  for (const Event& event : stream.events()) {
    for (const std::int64_t field : {std::int64_t{event.step}, std::int64_t{event.layer}, std::int64_t{event.block},
                                     static_cast<std::int64_t>(event.kind)})
      hash.number(field);
    if (event.kind == EventKind::copy) hash.number(event.source);
    if (stream.version() >= 2) hash.number(event.sequence), hash.number(static_cast<std::int64_t>(event.why));
    if (event.kind != EventKind::load) continue;
    stream.load_row(event.source, recurrent, conv);
    hash.vector(recurrent);
    hash.vector(conv);
  }
}

void add_inputs(Hasher& hash, Stream& stream) {
  StepInputs inputs;
  for (std::int64_t step = 0; step < stream.steps(); ++step)
    for (int layer = 0; layer < stream.model().layers(); ++layer) {
      stream.inputs(step, layer, inputs);
      hash.vector(inputs.mixed_qkv);
      hash.vector(inputs.a);
      hash.vector(inputs.b);
      hash.vector(inputs.z);
    }
}

}  // namespace

std::string content_digest_of(Stream& stream) {
  Hasher hash;
  const int version = stream.version();
  hash.text(version < 2 ? "gdnsim-content 1" : "gdnsim-content 2");
  add_model(hash, stream.model(), version);
  for (int layer = 0; layer < stream.model().layers(); ++layer) add_params(hash, stream.params(layer));
  hash.number(stream.steps());
  hash.number(stream.rows());
  for (std::int64_t step = 0; step < stream.steps(); ++step) add_plan(hash, stream.plan(step), version);
  add_events(hash, stream);
  add_inputs(hash, stream);
  return hash.hex();
}

}  // namespace gdnsim
