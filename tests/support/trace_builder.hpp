// The smallest whole trace, built object by object, for tests of what a reader takes and refuses.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <gdnsim/error.hpp>
#include <gdnsim/trace.hpp>

#include "file/hdf5_io.hpp"
#include "support/temp_dir.hpp"
#include "support/trace_data.hpp"

namespace gdnsim::test {

using h5::Dims;
using h5::Group;
using h5::Type;

/// The smallest whole trace, built object by object so that any one of them can be left out or replaced:
/// H 1, HV 2, K 2, V 3, W 2, dim 10, one layer, T 2, B 2, 4 blocks, one load row, one snapshot.
class Builder {
 public:
  using Part = std::function<void(Group&, const std::string&)>;
  /// Parts by path ("steps/index") or attribute ("model@scale"); empty: left out.
  std::map<std::string, Part> parts;

  Builder() {
    attribute("@format", [](Group& g, const std::string& n) { g.set_string(n, "gdnsim-trace"); });
    for (const char* name : {"@version", "@complete", "model@num_k_heads", "model@use_qk_l2norm"}) integer(name, 1);
    for (const char* name : {"model@num_v_heads", "model@head_k_dim", "model@conv_width"}) integer(name, 2);
    integer("model@head_v_dim", 3), integer("model@num_blocks", 4);
    attribute("model@scale", [](Group& g, const std::string& n) { g.set_float(n, 0.5f); });
    text("model@activation", "silu"), text("model@state_dtype", "f32"), text("model@conv_state_dtype", "bf16");
    text("model@act_dtype", "bf16"), text("model@sentinel", "nonpositive");
    vector<std::int32_t>("model/layer_ids", {1}, {7});
    vector<float>("params/0/A_log", {2}, {0, 1}), vector<float>("params/0/dt_bias", {2}, {0, 1});
    zeros("params/0/conv_weight", Type::bf16, {10, 2}), zeros("params/0/conv_bias", Type::bf16, {10});
    zeros("params/0/norm_weight", Type::bf16, {3});
    vector<std::int32_t>("steps/index", {2, 2}, {1, 2, 3, 0}),
        vector<std::int64_t>("steps/sequence", {2, 2}, {5, 6, 7, -1});
    vector<std::int32_t>("steps/rows", {2}, {2, 2}), vector<std::int8_t>("steps/path", {2}, {0, 1});
    zeros("steps/token", Type::i32, {2, 2}), zeros("steps/position", Type::i32, {2, 2});
    zeros("steps/0/mixed_qkv", Type::bf16, {2, 2, 10}), zeros("steps/0/a", Type::bf16, {2, 2, 2});
    zeros("steps/0/b", Type::bf16, {2, 2, 2}), zeros("steps/0/z", Type::bf16, {2, 2, 6});
    vector<std::int32_t>("events/step", {2}, {0, 1}), vector<std::int32_t>("events/layer", {2}, {-1, 0});
    vector<std::int32_t>("events/block", {2}, {1, 2}), vector<std::int8_t>("events/kind", {2}, {1, 2});
    vector<std::int32_t>("events/source", {2}, {0, 1});
    zeros("events/recurrent", Type::f32, {1, 2, 3, 2}), zeros("events/conv", Type::bf16, {1, 1, 10});
    zeros("recorded/0/conv_out", Type::bf16, {2, 2, 10}), zeros("recorded/0/core_out", Type::bf16, {2, 2, 2, 3});
    zeros("recorded/0/q", Type::f32, {2, 2, 1, 2}), zeros("recorded/0/beta", Type::f32, {2, 2, 2});
    for (const char* name : {"recorded/state/step", "recorded/state/layer"}) vector<std::int32_t>(name, {1}, {0});
    vector<std::int32_t>("recorded/state/block", {1}, {1});
    zeros("recorded/state/recurrent", Type::f32, {1, 2, 3, 2}), zeros("recorded/state/conv", Type::bf16, {1, 1, 10});
  }

  void attribute(const std::string& name, Part part) { parts[name] = std::move(part); }
  void integer(const std::string& name, std::int64_t value) {
    parts[name] = [=](Group& g, const std::string& n) { g.set_int(n, value); };
  }
  void text(const std::string& name, const std::string& value) {
    parts[name] = [=](Group& g, const std::string& n) { g.set_string(n, value); };
  }
  template <class T>
  void vector(const std::string& name, const Dims& dims, const std::vector<T>& values) {
    parts[name] = [=](Group& g, const std::string& n) { g.create_vector(n, dims, values); };
  }
  void zeros(const std::string& name, Type type, const Dims& dims) {
    parts[name] = [=](Group& g, const std::string& n) {
      h5::Dataset data = g.create_dataset(n, type, dims);
      data.write_all(Bytes(data.bytes()));
      data.close();
    };
  }
  void write(const std::string& path) const {
    std::filesystem::remove(path);
    h5::File file = h5::File::create(path, path);
    {
      Group root = file.root();
      for (const auto& [name, part] : parts) {
        const std::size_t cut = name.find_last_of("/@");
        Group group = descend(file, cut == name.npos ? "" : name.substr(0, cut));
        part(group, name.substr(cut == name.npos ? 0 : cut + 1));
      }
    }
    file.close();
  }

 private:
  static Group descend(h5::File& file, std::string path) {
    Group group = file.root();
    while (!path.empty()) {
      const std::size_t slash = path.find('/');
      const std::string name = path.substr(0, slash);
      std::optional<Group> next = group.find_group(name);
      group = next ? std::move(*next) : group.create_group(name);
      path = slash == path.npos ? "" : path.substr(slash + 1);
    }
    return group;
  }
};

/// Opens a changed copy of the builder's trace and wants exactly this line after "FILE: ".
inline void refused(const std::string& line, const std::function<void(Builder&)>& change) {
  const TempDir dir;
  Builder builder;
  change(builder);
  builder.write(dir / "t.h5");
  CHECK_THROWS_WITH_AS(open_trace(dir / "t.h5"), (dir / "t.h5: " + line).c_str(), Error);
}

inline void accepted(const std::function<void(Builder&)>& change) {
  const TempDir dir;
  Builder builder;
  change(builder);
  builder.write(dir / "t.h5");
  CHECK_NOTHROW(read_everything(*open_trace(dir / "t.h5")));
}

inline void without(Builder& builder, const std::string& prefix) {
  std::erase_if(builder.parts, [&](const auto& part) { return part.first.starts_with(prefix); });
}

}  // namespace gdnsim::test
