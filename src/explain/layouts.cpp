// Hypotheses about layout: q, k and v packed per key head instead of flat; a block's offset that wrapped at 32 bits.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "explain/kinds.hpp"

namespace gdnsim::explaining {
namespace {

/// order[flat channel] = channel in the packing per key head: q of head h, k of head h, v of its value heads.
std::vector<std::size_t> packed_order(const Model& model) {
  const std::size_t H = static_cast<std::size_t>(model.H), K = static_cast<std::size_t>(model.K);
  const std::size_t values = static_cast<std::size_t>(model.HV / model.H) * static_cast<std::size_t>(model.V),
                    group = 2 * K + values;
  std::vector<std::size_t> order(static_cast<std::size_t>(model.dim()));
  for (std::size_t h = 0; h < H; ++h) {
    for (std::size_t i = 0; i < K; ++i) {
      order[h * K + i] = h * group + i;
      order[H * K + h * K + i] = h * group + K + i;
    }
    for (std::size_t i = 0; i < values; ++i) order[2 * H * K + h * values + i] = h * group + 2 * K + i;
  }
  return order;
}

std::vector<std::size_t> inverse(const std::vector<std::size_t>& order) {
  std::vector<std::size_t> result(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) result[order[i]] = i;
  return result;
}

/// Lines of order.size() groups of `group` bytes: group i takes what stood in group order[i].
void permute(Bytes& words, const std::vector<std::size_t>& order, std::size_t group) {
  const Bytes before = words;
  const std::size_t line = order.size() * group;
  for (std::size_t at = 0; at + line <= words.size(); at += line)
    for (std::size_t i = 0; i < order.size(); ++i)
      std::memcpy(words.data() + at + i * group, before.data() + at + order[i] * group, group);
}

/// x is read in the other packing, before the conv.
Twist other_input(const std::vector<std::size_t>& order) {
  Twist twist;
  twist.before = [=](StepEdit& edit) { permute(edit.inputs.mixed_qkv, order, size_of(edit.pool.model().act_dtype)); };
  return twist;
}

/// conv_out is split in the other packing: the whole conv is run on permuted channels and put back.
Twist other_split(const std::vector<std::size_t>& order) {
  const auto back = inverse(order);
  const auto permute_windows = [](StepEdit& edit, const std::vector<std::size_t>& by) {
    for (std::int32_t block : edit.plan.block) {
      if (block < 0) continue;
      Words words = read_words(edit.pool, edit.layer, block);
      permute(words.conv, by, size_of(edit.pool.model().conv_state_dtype));
      write_words(edit.pool, edit.layer, block, words);
    }
  };
  Twist twist;
  twist.params = [=](LayerParams& params) {
    permute(params.conv_weight, order, params.conv_weight.size() / order.size());
    if (!params.conv_bias.empty()) permute(params.conv_bias, order, params.conv_bias.size() / order.size());
  };
  twist.before = [=](StepEdit& edit) {
    permute(edit.inputs.mixed_qkv, order, size_of(edit.pool.model().act_dtype));
    permute_windows(edit, order);
  };
  twist.after = [=](StepEdit& edit) {
    permute_windows(edit, back);
    for (Tap tap : {Tap::conv_acc, Tap::conv_out})
      if (edit.outputs.want.has(tap)) permute(edit.outputs[tap], back, size_of(shape_of(tap, edit.pool.model()).type));
  };
  return twist;
}

/// Where block * stride leads when it is kept modulo `modulus`; the block itself when it lands inside a block.
std::int32_t wrapped(std::int64_t block, std::uint64_t stride, std::uint64_t modulus) {
  const std::uint64_t offset = static_cast<std::uint64_t>(block) * stride % modulus;
  return offset % stride == 0 ? static_cast<std::int32_t>(offset / stride) : static_cast<std::int32_t>(block);
}

Twist wraps(std::uint64_t stride, std::uint64_t modulus, Part part) {
  auto own = std::make_shared<std::map<std::int32_t, Words>>();
  const auto each = [=](StepEdit& edit, const auto& use) {
    for (std::int32_t block : edit.plan.block)
      if (block >= 0)
        if (const std::int32_t hit = wrapped(block, stride, modulus);
            hit != block && hit < edit.pool.model().num_blocks)
          use(block, hit);
  };
  Twist twist;
  twist.before = [=](StepEdit& edit) {
    each(edit, [&](std::int32_t block, std::int32_t hit) {
      Words words = (*own)[block] = read_words(edit.pool, edit.layer, block);
      take(part, read_words(edit.pool, edit.layer, hit), words);
      write_words(edit.pool, edit.layer, block, words);
    });
  };
  twist.after = [=](StepEdit& edit) {
    each(edit, [&](std::int32_t block, std::int32_t hit) {
      Words result = read_words(edit.pool, edit.layer, block), theirs = read_words(edit.pool, edit.layer, hit);
      take(part, result, theirs);
      write_words(edit.pool, edit.layer, hit, theirs);
      take(part, (*own)[block], result);
      write_words(edit.pool, edit.layer, block, result);
    });
  };
  return twist;
}

}  // namespace

namespace {

/// The offsets of a part wrap at 2^31 or 2^32: the sentence names the first of the scene's blocks that does.
void propose_wrap(const Scene& scene, std::uint64_t stride, const char* unit, Part part, Hypotheses& out) {
  std::vector<std::int32_t> named(scene.blocks.begin(), scene.blocks.end());
  if (scene.at.block >= 0) named.insert(named.begin(), scene.at.block);
  for (int bits : {31, 32}) {
    const std::uint64_t modulus = std::uint64_t{1} << bits;
    const auto block =
        std::ranges::find_if(named, [&](std::int32_t one) { return wrapped(one, stride, modulus) != one; });
    if (block == named.end()) continue;
    const std::int32_t hit = wrapped(*block, stride, modulus);
    const Scope scope{-1, -1, scene.bench.layer, -1, hit, -1};
    const std::string says = "block " + std::to_string(*block) + " times " + std::to_string(stride) + " " + unit +
                             " exceeds 2^" + std::to_string(bits) + ": the offset of its " + words_of(part) +
                             " wrapped to block " + std::to_string(hit);
    Hypothesis hypothesis;
    hypothesis.mechanisms = {{"index-wrap", scope, says, "", Proof::rerun}};
    hypothesis.twists = {wraps(stride, modulus, part)};
    hypothesis.twists[0].blocks = {hit};
    hypothesis.whole = true;
    out.push_back(std::move(hypothesis));
  }
}

}  // namespace

void propose_wraps(const Scene& scene, Hypotheses& out) {
  const Model& model = scene.model();
  const std::int32_t highest = *scene.blocks.rbegin();
  const auto propose = [&](std::uint64_t stride, const char* unit, Part part) {
    propose_wrap(scene, stride, unit, part, out);
  };
  const auto stride_of = [](std::int64_t stride, std::int64_t content) {
    return static_cast<std::uint64_t>(stride > 0 ? stride : content);
  };
  const std::uint64_t state = stride_of(model.block_stride, model.state_elements()),
                      conv = stride_of(model.conv_block_stride, model.conv_elements());
  const auto beyond = [&](std::uint64_t bytes) { return static_cast<std::uint64_t>(highest) * bytes >> 31 > 0; };
  if (const std::uint64_t bytes = state * size_of(model.state_dtype); beyond(bytes)) {
    if (model.block_stride > 0 && model.conv_block_stride == 0) propose(state, "elements", Part::both);
    propose(state, "elements", Part::recurrent);
    propose(bytes, "bytes", Part::recurrent);
  }
  if (const std::uint64_t bytes = conv * size_of(model.conv_state_dtype); beyond(bytes)) {
    propose(conv, "elements", Part::conv);
    propose(bytes, "bytes", Part::conv);
  }
}

void propose_layouts(const Scene& scene, Hypotheses& out) {
  const auto order = packed_order(scene.model());
  if (std::ranges::is_sorted(order)) return;  // one key head: both packings are the same
  const Scope scope{-1, -1, scene.bench.layer, -1, -1, -1};
  const auto propose = [&](const char* says, Twist twist) {
    Hypothesis hypothesis;
    hypothesis.mechanisms = {{"qkv-packing", scope, says, "", Proof::rerun}};
    hypothesis.twists = {std::move(twist)};
    hypothesis.whole = true;
    out.push_back(std::move(hypothesis));
  };
  propose("flat q | k | v was read as packed per key head", other_input(order));
  propose("q, k, v packed per key head were read as flat", other_input(inverse(order)));
  propose("conv_out, flat q | k | v, was split as packed per key head", other_split(order));
  propose("conv_out, packed per key head, was split as flat", other_split(inverse(order)));
}

}  // namespace gdnsim::explaining
