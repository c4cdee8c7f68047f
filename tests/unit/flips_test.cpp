// Every byte of a log's covered data and of a trace's inputs, changed one at a time: verify finds each in the log; the trace's
// content digest, by which a log knows its trace, is another or the trace is refused.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

#include <doctest/doctest.h>

#include "log/file.hpp"
#include "support/log_files.hpp"
#include "support/temp_dir.hpp"
#include "support/trace_data.hpp"
#include "trace/digest.hpp"

using namespace gdnsim;
using namespace gdnsim::test;

namespace {

/// A part of a file.
struct Span {
  std::string name;
  std::uint64_t offset, bytes;
};

/// Changes single bytes of a file in place.
class Bytewise {
 public:
  explicit Bytewise(const std::string& path) : descriptor_(::open(path.c_str(), O_RDWR | O_CLOEXEC)) {
    REQUIRE(descriptor_ >= 0);
  }
  ~Bytewise() { ::close(descriptor_); }
  /// Changes each byte of the span in turn, by bits drawn at random, and counts those that `found` does not see.
  template <class Found>
  std::uint64_t each(const Span& span, const Found& found) {
    std::uint64_t missed = 0;
    for (std::uint64_t at = span.offset; at < span.offset + span.bytes; ++at) {
      unsigned char byte = 0;
      REQUIRE(::pread(descriptor_, &byte, 1, static_cast<off_t>(at)) == 1);
      write(at, byte ^ static_cast<unsigned char>(1 + random_() % 255));
      if (!found()) {
        ++missed;
        CHECK_MESSAGE(span.name == "events/source", span.name << ": byte " << at - span.offset << " is not found");
      }
      write(at, byte);
    }
    return missed;
  }

 private:
  void write(std::uint64_t at, int byte) {
    const unsigned char value = static_cast<unsigned char>(byte);
    REQUIRE(::pwrite(descriptor_, &value, 1, static_cast<off_t>(at)) == 1);
  }
  const int descriptor_;
  std::mt19937 random_{5};
};

/// A dataset of a file, wherever it lies; nothing when the file has none of that name.
std::optional<Span> span_of(const std::string& path, const std::string& group, const std::string& name) {
  const h5::File file = h5::File::open(path);
  h5::Group at = file.root();
  std::string part;
  for (std::istringstream parts(group); std::getline(parts, part, '/');) {
    if (!at.has(part)) return std::nullopt;
    at = at.group(part);
  }
  if (!at.has(name)) return std::nullopt;
  for (const h5::Type type :
       {h5::Type::i8, h5::Type::i32, h5::Type::i64, h5::Type::u64, h5::Type::f32, h5::Type::f16, h5::Type::bf16})
    for (std::size_t rank = 1; rank < 7; ++rank) {
      try {
        const h5::Dataset data = at.dataset(name, type, h5::Dims(rank, h5::kAny));
        if (data.bytes() == 0) return std::nullopt;
        return Span{group + "/" + name, data.file_offset(), data.bytes()};
      } catch (const Error&) {
        continue;
      }
    }
  FAIL("no such type: " << name);
  return std::nullopt;
}

bool log_is_faulty(const std::string& path) {
  try {
    LogFile log(path);  // the tests' own files: no child is needed
    return !log.verify().dataset.empty();
  } catch (const Error&) {
    return true;
  }
}

}  // namespace

TEST_CASE("verify finds every byte that changes in a log's covered data") {
  const Folder folder;
  const std::string path = folder / "a";
  for (const auto& [policy, every] : {std::pair("full", 2), std::pair("every:3", 0), std::pair("digest", 3)}) {
    LogHeader header = header_of(state_policy_from(policy));
    write_log(path, every > 0 ? checkpointed(header, every) : header, {true});
    REQUIRE(!log_is_faulty(path));
    Bytewise file(path);
    std::uint64_t bytes = 0, missed = 0;
    LogFile open(path);
    for (const Extent* extent : open.layout().extents()) {
      const Span span{extent->path(), extent->offset, extent->bytes()};
      const bool at_opening = extent->group == "digest" || extent->group.empty();  // opening counts the complete steps
      bytes += span.bytes;
      missed += at_opening ? file.each(span, [&] { return log_is_faulty(path); })
                           : file.each(span, [&] { return !open.verify().dataset.empty(); });
    }
    const std::uint64_t data = bytes;
    for (const auto& [group, name] : {std::pair("model", "layer_ids"),
                                      {"model", "layers"},
                                      {"", "source"},
                                      {"steps", "index"},
                                      {"steps", "sequence"},
                                      {"steps", "rows"},
                                      {"steps", "path"},
                                      {"state", "step"},
                                      {"state", "block"},
                                      {"checkpoint", "step"},
                                      {"checkpoint", "block"}})
      if (const auto span = span_of(path, group, name)) {
        bytes += span->bytes;
        missed += file.each(*span, [&] { return log_is_faulty(path); });
      }
    CHECK(bytes > data + 300);
    CHECK(missed == 0);
    CHECK(!log_is_faulty(path));
    MESSAGE("--state " << std::string(policy) << ", checkpoints every " << every << ": " << bytes
                       << " bytes changed one by one, " << bytes - missed << " found");
  }
}

TEST_CASE("every byte that changes in a trace's inputs gives another content digest, or the trace is refused") {
  const TempDir folder;
  const std::string path = folder / "trace.h5";
  const TraceData data = random_trace(1, DType::bf16, DType::f32, DType::bf16);
  write_trace_data(path, data);
  Bytewise file(path);
  std::uint64_t bytes = 0, missed = 0;
  const auto open = open_trace(path);
  const std::string digest = content_digest_of(*open);
  const auto read_again = [&] { return content_digest_of(*open) != digest; };
  const auto opened_again = [&] {
    try {
      return open_trace(path)->content_digest() != digest;
    } catch (const Error&) {
      return true;
    }
  };
  const auto change = [&](const std::string& group, const char* name, const auto& found) {
    if (const auto span = span_of(path, group, name)) bytes += span->bytes, missed += file.each(*span, found);
  };
  for (const char* name : {"mixed_qkv", "a", "b", "z"})
    for (int layer = 0; layer < open->model().layers(); ++layer)
      change("steps/" + std::to_string(layer), name, read_again);
  for (const char* name : {"recurrent", "conv"}) change("events", name, read_again);
  const std::uint64_t bulk = bytes;
  for (const char* name : {"index", "sequence", "rows", "path"}) change("steps", name, opened_again);
  for (const char* name : {"step", "layer", "block", "kind", "source"}) change("events", name, opened_again);
  for (const char* name : {"A_log", "dt_bias", "conv_weight", "conv_bias", "norm_weight"})
    change("params/0", name, opened_again);
  CHECK(bulk > 1000);
  CHECK(bytes > bulk + 300);
  // The source of an event that has none says nothing.
  const auto sourceless = std::ranges::count_if(
      open->events(), [](const Event& e) { return e.kind == EventKind::zero || e.kind == EventKind::free; });
  CHECK(missed == 4 * static_cast<std::uint64_t>(sourceless));
  MESSAGE("a trace: " << bytes << " bytes changed one by one, " << bytes - missed << " found");
}
