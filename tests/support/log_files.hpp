// What the tests of logs share: a folder of their own, a witness of what really ran, and ways to write, damage and look.
#pragma once

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <doctest/doctest.h>

#include <gdnsim/error.hpp>
#include <gdnsim/log.hpp>

#include "file/hdf5_io.hpp"
#include "support/fake_run.hpp"

namespace gdnsim::test {

inline constexpr std::int64_t kSteps = 8;
inline constexpr int kRows = 3;

/// A directory of its own, removed at the end.
struct Folder {
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "gdnsim-log-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    path = name;
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::string operator/(const std::string& name) const { return (path / name).string(); }
  std::size_t entries() const {
    return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(path), {}));
  }
  std::filesystem::path path;
};

/// What really happened, seen by an observer that shares nothing with the writer: outputs, states, and pools hashed whole.
struct Witness final : Observer {
  explicit Witness(LogWriter* next = nullptr) : writer(next) {}
  void event_coming(const Event& event, int layer, Pool& pool) override {
    if (writer) writer->event_coming(event, layer, pool);
    before_event = pool.digest(layer, event.block).block;
  }
  void event_applied(const Event& event, int layer, Pool& pool) override {
    events.push_back({layer, {before_event, pool.digest(layer, event.block).block}});
    if (writer) writer->event_applied(event, layer, pool);
  }
  void before(std::int64_t step, int layer, const StepPlan& plan, Pool& pool) override {
    if (writer) writer->before(step, layer, plan, pool);
  }
  void after(const StepView& view) override {
    if (writer) writer->after(view);
    const Model& model = view.pool.model();
    if (view.executed) outputs[{view.step, view.layer}] = view.outputs.taps;
    Bytes recurrent(model.state_bytes()), conv(model.conv_bytes());
    std::uint64_t pool = 0;
    for (std::int32_t block = 0; block < model.num_blocks; ++block) {
      view.pool.read(view.layer, block, recurrent, conv);
      states[{view.step, view.layer, block}] = {recurrent, conv};
      pool += pool_share(digest_block(model, recurrent, conv).block, block);
    }
    pools[{view.step, view.layer}] = pool;
  }
  void step_done(std::int64_t step) override {
    if (writer) writer->step_done(step);
  }
  LogWriter* writer;
  std::uint64_t before_event = 0;
  std::vector<std::pair<int, EventDigests>> events;  // layer by layer, as they were applied
  std::map<std::pair<std::int64_t, int>, std::array<Bytes, kTaps>> outputs;
  std::map<std::tuple<std::int64_t, int, std::int32_t>, std::pair<Bytes, Bytes>> states;
  std::map<std::pair<std::int64_t, int>, std::uint64_t> pools;
};

inline Witness write_log(const std::string& path, const LogHeader& header, const LogOptions& options = {},
                         bool stray = false) {
  FakeStream stream(kSteps, kRows, header.model);
  const auto writer = create_log(path, header, options);
  Witness witness(writer.get());
  fake_run(stream, header, witness, stray);
  CHECK(writer->committed() == header.steps);
  writer->close();
  witness.writer = nullptr;
  return witness;
}

inline LogHeader header_of(const StatePolicy& policy, std::int64_t first = 0, std::int64_t steps = kSteps) {
  FakeStream stream(kSteps, kRows);
  return fake_header(stream, first, steps, policy);
}

/// As header_of, with the whole pool kept after each `every` steps.
inline LogHeader checkpointed(LogHeader header, std::int64_t every) {
  header.checkpoint_every = every;
  header.checkpoint_blocks = named_blocks(FakeStream(kSteps, kRows, header.model), header.first_step + header.steps);
  return header;
}

/// Goes on with an interrupted log; the step from which it computed.
inline std::int64_t finish_log(LogWriter& writer, const LogHeader& header) {
  FakeStream stream(kSteps, kRows, header.model);
  FakeBackend backend;
  const auto pool = backend.make_pool(stream.model(), header.layers);
  const std::int64_t first = writer.start(*pool);
  const ContractSet contracts = contract_set("golden");
  simulate({stream, backend, contracts, header.layers, header.first_step + header.steps, header.taps, first}, *pool,
           writer);
  writer.close();
  return first;
}

inline std::string text_of_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// File offset and size of one step's (or snapshot's) entry of a dataset.
inline std::pair<std::uint64_t, std::uint64_t> entry(const std::string& path, const std::string& group,
                                                     const std::string& name, h5::Type type, std::size_t rank,
                                                     std::uint64_t first) {
  const h5::File file = h5::File::open(path);
  const h5::Group root = file.root();
  const h5::Dims any(rank, h5::kAny);
  const h5::Dataset data = group.empty() ? root.dataset(name, type, any) : root.group(group).dataset(name, type, any);
  return {data.file_offset() + first * data.row_bytes(), data.row_bytes()};
}

inline void overwrite(const std::string& path, std::uint64_t offset, const std::string& bytes) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(static_cast<std::streamoff>(offset));
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  REQUIRE(file.good());
}

inline void flip(const std::string& path, std::uint64_t offset, unsigned bit = 0) {
  std::string byte = text_of_file(path).substr(offset, 1);
  byte[0] = static_cast<char>(byte[0] ^ (1 << bit));
  overwrite(path, offset, byte);
}

template <class Call>
std::string error_of(Call call) {
  try {
    call();
  } catch (const Error& found) {
    return found.what();
  }
  return "no error";
}

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// Runs `job` in a child process and returns its wait status.
template <class Job>
int in_child(Job job) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(job());
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return status;
}

}  // namespace gdnsim::test
