// Logs: what is written is what ran, every policy reads back, damage is found and named.
#include <gdnsim/log.hpp>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include <doctest/doctest.h>

#include "support/log_files.hpp"

using namespace gdnsim;
using namespace gdnsim::test;
namespace fs = std::filesystem;

TEST_CASE("state policy: words and kept steps") {
  CHECK(state_policy_from("full").kept_steps(3) == std::vector<std::int64_t>{0, 1, 2});
  CHECK(state_policy_from("every:4").kept_steps(10) == std::vector<std::int64_t>{3, 7, 9});
  CHECK(state_policy_from("every:5").kept_steps(10) == std::vector<std::int64_t>{4, 9});
  CHECK(state_policy_from("every:100").kept_steps(3) == std::vector<std::int64_t>{2});
  CHECK(state_policy_from("digest").kept_steps(3).empty());
  for (const char* bad :
       {"", "every", "every:", "every:0", "every:-1", "every:2x", "every: 2", "Full", "every:99999999999999999999"})
    CHECK_MESSAGE(contains(error_of([&] { state_policy_from(bad); }), "expected full, every:N"), bad);
}

TEST_CASE("a log holds what ran: every policy, whole and from the middle") {
  const Folder folder;
  int number = 0;
  for (const char* policy : {"full", "every:3", "digest"})
    for (std::int64_t first : {0, 2}) {
      CAPTURE(policy);
      CAPTURE(first);
      const std::int64_t steps = first == 0 ? kSteps : 5;
      LogHeader header = header_of(state_policy_from(policy), first, steps);
      header.taps = {Tap::conv_acc, Tap::conv_out, Tap::q, Tap::beta, Tap::u, Tap::core_out, Tap::rstd, Tap::norm_out};
      const std::string path = folder / std::to_string(number++);
      Witness witness = write_log(path, header);
      const auto log = open_log(path);
      REQUIRE(log->steps() == steps);
      CHECK(log->first_step() == first);
      CHECK(log->verify().dataset == "");
      CHECK(log->taps(0) == header.taps);
      TapSet without = header.taps;
      without.remove(Tap::rstd), without.remove(Tap::norm_out);
      CHECK(log->taps(2) == without);
      for (std::int64_t step = first; step < first + steps; ++step)
        for (int layer : header.layers) {
          const StepPlan plan = log->plan(step);
          const bool executed = plan.path != Path::opaque;
          CHECK(executed == (step != 3));
          const auto digests = log->digest_out(step, layer);
          std::size_t at = 0;
          Bytes words;
          for (std::size_t i = 0; i < kTaps; ++i) {
            const Tap tap = static_cast<Tap>(i);
            if (!header.taps.has(tap)) continue;
            log->read_tap(tap, step, layer, words);
            Bytes ran = executed ? witness.outputs[{step, layer}][i] : Bytes{};
            CHECK(digests[at++] == (ran.empty() ? 0 : xxh3_64(ran)));
            if (ran.empty()) ran.resize(shape_of(tap, header.model).bytes() * kRows);
            CHECK(words == ran);
          }
          CHECK(log->digest_pool(step, layer) == witness.pools[{step, layer}]);
          const auto heads = log->digest_recurrent(step, layer), convs = log->digest_conv(step, layer);
          for (std::size_t row = 0; row < kRows; ++row) {
            BlockDigest expected{std::vector<std::uint64_t>(2), 0, 0};
            if (executed && plan.block[row] >= 0) {
              const auto& [recurrent, conv] = witness.states[{step, layer, plan.block[row]}];
              expected = digest_block(header.model, recurrent, conv);
            }
            CHECK(std::vector(heads.begin() + 2 * row, heads.begin() + 2 * row + 2) == expected.heads);
            CHECK(convs[row] == expected.conv);
          }
        }
      std::size_t kept = 0;
      for (std::int64_t step : header.state.kept_steps(steps))
        for (std::int32_t block : header.plans[static_cast<std::size_t>(step)].block)
          if (block >= 0 && first + step != 3) kept += 2;
      CHECK(log->snapshots().size() == kept);
      Bytes recurrent, conv;
      for (const Snapshot& snapshot : log->snapshots()) {
        log->read_snapshot(snapshot, recurrent, conv);
        const auto& state = witness.states[{snapshot.step, snapshot.layer, snapshot.block}];
        CHECK((recurrent == state.first && conv == state.second));
      }
    }
}

TEST_CASE("a header is rebuilt exactly") {
  const Folder folder;
  LogHeader header = header_of(state_policy_from("every:3"), 2, 6);
  header.model.act_dtype = DType::f16;
  header.model.state_dtype = DType::bf16;
  header.model.sentinel = Sentinel::minus_one;
  header.model.norm_eps.reset();
  header.model.inactive_core_out = InactiveOut::unwritten;
  header.contracts.decode.name = "mine";
  header.contracts.decode.multiprocessors = 78;
  header.provenance = {{"backend", "fake"}, {"host", "here"}};
  header.source = "{\"schema\": \"gdnsim.recipe/1\"}";
  FakeStream stream(kSteps, kRows, header.model);
  header.plans.clear();
  for (std::int64_t t = 2; t < 8; ++t) header.plans.push_back(stream.plan(t));
  create_log(folder / "a", header, {})->close();
  const auto log = open_log(folder / "a");
  const LogHeader& read = log->header();
  CHECK(read.model == header.model);
  CHECK(read.layers == header.layers);
  CHECK(read.contracts == header.contracts);
  CHECK(read.source == header.source);
  CHECK(read.first_step == 2);
  CHECK(read.steps == 6);
  CHECK(read.rows == kRows);
  CHECK(read.taps == header.taps);
  CHECK(read.state.kind == header.state.kind);
  CHECK(read.state.n == header.state.n);
  CHECK(read.provenance == header.provenance);
  REQUIRE(read.plans.size() == header.plans.size());
  for (std::size_t t = 0; t < read.plans.size(); ++t) {
    const StepPlan &got = read.plans[t], &want = header.plans[t];
    CHECK(got.step == want.step);
    CHECK(got.path == want.path);
    CHECK(got.index == want.index);
    CHECK(got.block == want.block);
    CHECK(got.sequence == want.sequence);
    CHECK(got.present == want.present);
  }
  CHECK(log->steps() == 0);
  CHECK(log->declared_steps() == 6);
  CHECK(log->verify().dataset == "");
  CHECK(kind_of_file(folder / "a") == FileKind::log);
}

TEST_CASE("equal runs give equal bytes; provenance is all that may differ; the size is known before") {
  const Folder folder;
  for (const char* policy : {"full", "every:3", "digest"}) {
    LogHeader header = header_of(state_policy_from(policy));
    const std::string a = folder / (std::string(policy) + "a"), b = folder / (std::string(policy) + "b");
    write_log(a, header);
    write_log(b, header, {false, 2, true});  // syncing and auditing change nothing
    CHECK((text_of_file(a) == text_of_file(b)));
    const std::uint64_t size = fs::file_size(a), said = log_size(header);
    CHECK_MESSAGE((said <= size + 16384 && size <= said + 16384), said << " against " << size);
    header.provenance = {{"host", "elsewhere"}};
    write_log(folder / (std::string(policy) + "c"), header);
    CHECK(open_log(folder / (std::string(policy) + "c"))->chain() == open_log(a)->chain());
  }
}

TEST_CASE("the chain starts from the header: another contract, source, index or sequence is another chain") {
  const Folder folder;
  const LogHeader header = header_of(state_policy_from("digest"));
  write_log(folder / "base", header);
  const auto chain = open_log(folder / "base")->chain();
  LogHeader contract = header, source = header, sequence = header, rows = header;
  contract.contracts.mixed.multiprocessors = 1;
  source.source += "0";
  sequence.plans[4].sequence[0] = 7;
  rows.plans[5].index[2] = 4;  // a row that is not present
  int number = 0;
  for (const LogHeader& other : {contract, source, sequence, rows}) {
    const std::string path = folder / std::to_string(number++);
    write_log(path, other);
    CHECK(open_log(path)->chain() != chain);
  }
}

TEST_CASE("steps count up to the first missing record") {
  const Folder folder;
  const std::string path = folder / "a";
  write_log(path, header_of(state_policy_from("full")));
  for (std::uint64_t k : {7, 5, 1, 0}) {
    const auto [offset, bytes] = entry(path, "", "commit", h5::Type::u64, 2, k);
    overwrite(path, offset, std::string(bytes * (8 - k), '\0'));
    const auto log = open_log(path);
    CHECK(log->steps() == static_cast<std::int64_t>(k));
    CHECK(log->verify().dataset == "");
    for (const Snapshot& snapshot : log->snapshots()) CHECK(snapshot.step < log->steps());
    Bytes words;
    CHECK(contains(error_of([&] { log->read_tap(Tap::core_out, static_cast<std::int64_t>(k), 0, words); }),
                   "complete steps"));
  }
}

TEST_CASE("a record that is damaged, or missing before others, is a fault") {
  const Folder folder;
  const std::string path = folder / "a";
  for (std::uint64_t byte = 0; byte < 32; byte += 5) {
    write_log(path, header_of(state_policy_from("digest")), {true});
    flip(path, entry(path, "", "commit", h5::Type::u64, 2, 4).first + byte);
    const auto log = open_log(path);
    CHECK(log->steps() == 4);
    CHECK(log->verify().dataset == "/commit");
    CHECK(log->verify().step == 4);
  }
  write_log(path, header_of(state_policy_from("digest")), {true});
  overwrite(path, entry(path, "", "commit", h5::Type::u64, 2, 4).first, std::string(32, '\0'));
  CHECK(open_log(path)->verify().dataset == "/commit");
  CHECK(open_log(path)->verify().step == 4);
}

TEST_CASE("a flipped byte is found, and its dataset and step are named") {
  struct Case {
    const char *policy, *group, *name;
    h5::Type type;
    std::size_t rank;
    std::uint64_t entry;  // step, or number of the snapshot
    std::int64_t step;
    const char* dataset;
  } const cases[] = {
      {"full", "out", "conv_out", h5::Type::bf16, 4, 6, 6, "/out/conv_out"},
      {"full", "out", "core_out", h5::Type::bf16, 5, 0, 0, "/out/core_out"},
      {"digest", "out", "norm_out", h5::Type::bf16, 5, 7, 7, "/out/norm_out"},
      {"digest", "out", "norm_out", h5::Type::bf16, 5, 3, 3, "/out/norm_out"},  // opaque: zeros
      {"full", "state", "recurrent", h5::Type::f32, 6, 4, 4, "/state/recurrent"},
      {"full", "state", "conv", h5::Type::bf16, 5, 1, 1, "/state/conv"},
      {"every:3", "state", "recurrent", h5::Type::f32, 6, 1, 5, "/state/recurrent"},
      {"full", "state", "conv", h5::Type::bf16, 5, 3, 3, "/state/conv"},  // opaque: zeros
      {"full", "digest", "recurrent", h5::Type::u64, 4, 2, 2, "/digest/recurrent"},
      {"full", "digest", "conv", h5::Type::u64, 3, 5, 5, "/digest/conv"},
      {"full", "digest", "pool", h5::Type::u64, 2, 0, 0, "/digest/pool"},
      {"every:3", "digest", "pool", h5::Type::u64, 2, 2, 2, "/digest/pool"},
      {"digest", "digest", "pool", h5::Type::u64, 2, 2, 2, "/digest"},
      {"digest", "digest", "recurrent", h5::Type::u64, 4, 7, 7, "/digest"},
      {"digest", "digest", "recurrent", h5::Type::u64, 4, 3, 3, "/digest/recurrent"},  // opaque: zeros
      {"digest", "digest", "conv", h5::Type::u64, 3, 7, 7, "/digest"},
      {"digest", "digest", "out", h5::Type::u64, 3, 1, 1, "/digest/out"},
      {"full", "", "commit", h5::Type::u64, 2, 7, 7, "/commit"},
  };
  const Folder folder;
  const std::string path = folder / "a";
  std::mt19937 random(1);
  for (const Case& c : cases) {
    CAPTURE(c.policy);
    CAPTURE(std::string(c.group) + "/" + c.name);
    CAPTURE(c.step);
    write_log(path, header_of(state_policy_from(c.policy)), {true});
    const auto [offset, bytes] = entry(path, c.group, c.name, c.type, c.rank, c.entry);
    for (int trial = 0; trial < 12; ++trial) {
      const std::uint64_t at = offset + (trial == 0 ? 0 : trial == 1 ? bytes - 1 : random() % bytes);
      const unsigned bit = random() % 8;
      flip(path, at, bit);
      const auto log = open_log(path);
      const LogFault fault = log->verify();
      CHECK(fault.dataset == c.dataset);
      CHECK(fault.step == c.step);
      CHECK(fault.what != "");
      CHECK(log->steps() ==
            (std::strncmp(c.dataset, "/out", 4) == 0 || std::strncmp(c.dataset, "/state", 6) == 0 ? kSteps : c.step));
      flip(path, at, bit);
      CHECK(open_log(path)->verify().dataset == "");
    }
  }
}

TEST_CASE("a flipped byte in the header's data is refused when opening, by name") {
  const Folder folder;
  const std::string path = folder / "a";
  write_log(path, header_of(state_policy_from("full")));
  struct {
    const char *group, *name;
    h5::Type type;
    std::size_t rank;
  } const cases[] = {{"steps", "index", h5::Type::i32, 2},     {"steps", "sequence", h5::Type::i64, 2},
                     {"steps", "rows", h5::Type::i32, 1},      {"steps", "path", h5::Type::i8, 1},
                     {"model", "layer_ids", h5::Type::i32, 1}, {"model", "layers", h5::Type::i32, 1},
                     {"state", "step", h5::Type::i32, 1},      {"state", "block", h5::Type::i32, 2},
                     {"", "source", h5::Type::i8, 1}};
  for (const auto& c : cases)
    for (unsigned bit = 0; bit < 8; ++bit) {
      CAPTURE(std::string(c.group) + "/" + c.name);
      const auto [offset, bytes] = entry(path, c.group, c.name, c.type, c.rank, 1);
      flip(path, offset, bit);
      const std::string text = error_of([&] { open_log(path); });
      CHECK_MESSAGE(text != "no error", bit);
      CHECK_MESSAGE((contains(text, c.group) && contains(text, path)), text);
      flip(path, offset, bit);
    }
  CHECK(open_log(path)->verify().dataset == "");
}

TEST_CASE("hostile bytes: flips and cuts give an Error, a fault or a whole log, nothing else") {
  const Folder folder;
  const std::string path = folder / "a";
  write_log(path, header_of(state_policy_from("every:3")));
  const std::string whole = text_of_file(path);
  std::mt19937 random(7);
  int refused = 0;
  for (int trial = 0; trial < 1500; ++trial) {
    std::string bytes = whole;
    if (trial % 10 == 0) bytes.resize(random() % bytes.size());
    for (int n = 0; n <= trial % 4 && !bytes.empty(); ++n) {
      // Mostly where the structure is: the first 64 bytes of a page.
      const std::size_t at =
          trial % 3 == 0 ? random() % bytes.size() : (random() % (bytes.size() / 4096 + 1)) * 4096 + random() % 64;
      if (at < bytes.size()) bytes[at] = static_cast<char>(random());
    }
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
    try {
      const auto log = open_log(path);
      log->verify();
    } catch (const Error& found) {
      CHECK(contains(found.what(), path));
      CHECK(!contains(found.what(), "\n"));
      ++refused;
    }
  }
  CHECK(refused > 500);
}

TEST_CASE("a write to a block that nothing named: the audit sees it") {
  const Folder folder;
  const LogHeader header = header_of(state_policy_from("digest"));
  write_log(folder / "clean", header, {false, 0, true});
  const Witness stray = write_log(folder / "stray", header, {false, 0, true}, true);
  const auto clean = open_log(folder / "clean"), audited = open_log(folder / "stray");
  for (int layer : header.layers) {
    CHECK(audited->digest_pool(3, layer) == clean->digest_pool(3, layer));
    CHECK(audited->digest_pool(4, layer) != clean->digest_pool(4, layer));
    CHECK(audited->digest_pool(4, layer) == stray.pools.at({4, layer}));
    CHECK(audited->digest_recurrent(4, layer) == clean->digest_recurrent(4, layer));
  }
}

TEST_CASE("kinds of files") {
  const Folder folder;
  std::ofstream(folder / "recipe") << " \n {\"schema\": 1}";
  std::ofstream(folder / "text") << "hello";
  std::ofstream(folder / "empty");
  std::ofstream(folder / "broken") << "\x89HDF\r\n\x1a\n and no more";
  CHECK(kind_of_file(folder / "recipe") == FileKind::recipe);
  for (const char* bad : {"text", "empty", "broken", "absent"})
    CHECK(contains(error_of([&] { kind_of_file(folder / bad); }), folder / bad));
  CHECK(contains(error_of([&] { kind_of_file(folder.path.string()); }), "regular file"));
}
