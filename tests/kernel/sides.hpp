// Two backends side by side on one stream, compared bit for bit: what the kernel tests share.
#pragma once

#include <doctest/doctest.h>

#include <gdnsim/backend.hpp>

#include <memory>
#include <string>

#include "kernel/device.hpp"
#include "support/one_layer.hpp"

namespace gdnsim::test {

inline TapSet every_tap() {
  TapSet taps;
  for (std::size_t t = 0; t < kTaps; ++t)
    if (static_cast<Tap>(t) != Tap::state && static_cast<Tap>(t) != Tap::conv_state) taps.add(static_cast<Tap>(t));
  return taps;
}

/// One backend with its pool, filled as the stream says.
struct Side {
  Backend& backend;
  std::unique_ptr<Pool> pool;
  StepOutputs outputs;

  Side(Backend& backend_, second::OneLayer& stream) : backend(backend_), pool(backend_.make_pool(stream.model(), {0})) {
    backend.prepare(stream, {0});
    outputs.want = every_tap();
    for (std::int32_t b = 0; b < stream.model().num_blocks; ++b) {
      const second::Block block = stream.random_block(static_cast<std::uint64_t>(b));
      pool->write(0, b, block.recurrent, block.conv);
    }
  }
};

struct Compared {
  std::uint64_t elements = 0;
};

inline void compare_bytes(const Bytes& got, const Bytes& want, DType type, const std::string& what, Compared& total) {
  CAPTURE(what);
  CHECK(second::first_difference(got, want, size_of(type)) == "");
  total.elements += want.size() / size_of(type);
}

inline void compare_digests(const BlockDigest& got, const BlockDigest& want, std::int32_t block) {
  CAPTURE(block);
  CHECK(got.heads == want.heads);
  CHECK(got.conv == want.conv);
  CHECK(got.block == want.block);
}

/// Outputs, and the bytes and digest of every block.
inline void compare_sides(const Side& got, const Side& want, const Model& model, Compared& total) {
  for (std::size_t t = 0; t < kTaps; ++t) {
    const Tap tap = static_cast<Tap>(t);
    compare_bytes(got.outputs[tap], want.outputs[tap], shape_of(tap, model).type, std::string(name_of(tap)), total);
  }
  second::Block a{Bytes(model.state_bytes()), Bytes(model.conv_bytes())}, b = a;
  for (std::int32_t block = 0; block < model.num_blocks; ++block) {
    got.pool->read(0, block, a.recurrent, a.conv);
    want.pool->read(0, block, b.recurrent, b.conv);
    compare_bytes(a.recurrent, b.recurrent, model.state_dtype, "state of block " + std::to_string(block), total);
    compare_bytes(a.conv, b.conv, model.conv_state_dtype, "conv state of block " + std::to_string(block), total);
    compare_digests(got.pool->digest(0, block), want.pool->digest(0, block), block);
  }
}

}  // namespace gdnsim::test
