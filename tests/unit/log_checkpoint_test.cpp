// Checkpoints: the whole pool comes back, a run goes on from it, damage is found and its block named.
#include <gdnsim/log.hpp>

#include <random>

#include <doctest/doctest.h>

#include "support/log_files.hpp"

using namespace gdnsim;
using namespace gdnsim::test;

namespace {

LogHeader header_with(const char* policy, std::int64_t every, std::int64_t first = 0, std::int64_t steps = kSteps) {
  return checkpointed(header_of(state_policy_from(policy), first, steps), every);
}

/// Bytes of one layer's block in a dataset of /checkpoint: entry [c, slot, i].
std::pair<std::uint64_t, std::uint64_t> block_entry(const std::string& path, const LogHeader& header, const char* name,
                                                    std::size_t c, std::size_t slot, std::size_t i) {
  const bool conv = std::string(name) == "conv";
  const auto [offset, bytes] = entry(path, "checkpoint", name, conv ? h5::Type::bf16 : h5::Type::f32, conv ? 5 : 6, c);
  const std::size_t N = header.checkpoint_blocks.size(), each = bytes / (header.layers.size() * N);
  return {offset + (slot * N + i) * each, each};
}

}  // namespace

TEST_CASE("checkpoint words") {
  CHECK(checkpoint_every_from("none") == 0);
  CHECK(checkpoint_every_from("every:12") == 12);
  for (const char* bad : {"", "every", "every:", "every:0", "every:-1", "every:2x", "full", "None"})
    CHECK_MESSAGE(contains(error_of([&] { checkpoint_every_from(bad); }), "expected none or every:M"), bad);
}

TEST_CASE("every block that an event or a row named is listed, and no other") {
  const FakeStream stream(kSteps, kRows);
  CHECK(named_blocks(stream, 1) == std::vector<std::int32_t>{1, 3});  // row 1 is inactive
  CHECK(named_blocks(stream, 2) == std::vector<std::int32_t>{1, 2, 3, 4, 5});
  CHECK(named_blocks(stream, kSteps) == std::vector<std::int32_t>{1, 2, 3, 4, 5});
}

TEST_CASE("a checkpoint gives the pool back, whole and from the middle") {
  const Folder folder;
  int number = 0;
  for (const char* policy : {"full", "digest"})
    for (const std::int64_t first : {0, 2}) {
      CAPTURE(policy);
      CAPTURE(first);
      const std::int64_t steps = kSteps - first;
      const LogHeader header = header_with(policy, 2, first, steps);
      const std::string path = folder / std::to_string(number++);
      Witness witness = write_log(path, header);
      const auto log = open_log(path);
      CHECK(log->header().checkpoint_every == 2);
      CHECK(log->header().checkpoint_blocks == header.checkpoint_blocks);
      CHECK(log->verify().dataset == "");
      const auto expected = first == 0 ? std::vector<std::int64_t>{1, 3, 5} : std::vector<std::int64_t>{3, 5};
      CHECK(log->checkpoints() == expected);
      for (const std::int64_t step : log->checkpoints()) {
        HostPool pool(header.model, header.layers);
        for (const int layer : header.layers) {
          log->read_checkpoint(step, layer, pool);
          Bytes recurrent(header.model.state_bytes()), conv(header.model.conv_bytes());
          for (std::int32_t block = 0; block < header.model.num_blocks; ++block) {
            pool.read(layer, block, recurrent, conv);
            CHECK((std::pair(recurrent, conv) == witness.states[{step, layer, block}]));
          }
        }
        CHECK(contains(error_of([&] { log->read_checkpoint(step + 1, 0, pool); }), "the log has none of it"));
      }
    }
}

TEST_CASE("an interrupted slice goes on from its checkpoint, and ends in the same bytes") {
  const Folder folder;
  const std::string path = folder / "a";
  const LogHeader header = header_with("every:2", 2, 2, 6);
  write_log(path, header);
  const std::string whole = text_of_file(path);
  for (const std::int64_t complete : {1, 2, 3, 5, 6}) {
    CAPTURE(complete);
    const auto [commit, bytes] = entry(path, "", "commit", h5::Type::u64, 2, static_cast<std::uint64_t>(complete));
    overwrite(path, commit, std::string(static_cast<std::size_t>(6 - complete) * bytes, '\0'));
    const auto writer = resume_log(path, header, {});
    CHECK(writer->committed() == complete);
    CHECK(finish_log(*writer, header) == (complete < 2 ? 0 : complete < 4 ? 4 : 6));
    CHECK((text_of_file(path) == whole));
    CHECK(writer->chain() == open_log(path)->chain());
  }
}

TEST_CASE("checkpoints change nothing else, and where there are none nothing at all") {
  const Folder folder;
  const LogHeader plain = header_of(state_policy_from("every:3"));
  write_log(folder / "plain", plain);
  write_log(folder / "late", checkpointed(plain, kSteps));  // the last step has none
  CHECK((text_of_file(folder / "late") == text_of_file(folder / "plain")));
  write_log(folder / "three", checkpointed(plain, 3));
  const auto with = open_log(folder / "three"), without = open_log(folder / "plain");
  CHECK(with->chain() != without->chain());  // the header says which there are
  for (std::int64_t step = 0; step < kSteps; ++step)
    for (const int layer : plain.layers) {
      CHECK(with->digest_pool(step, layer) == without->digest_pool(step, layer));
      CHECK(with->digest_recurrent(step, layer) == without->digest_recurrent(step, layer));
    }
  CHECK(log_size(checkpointed(plain, 3)) >= text_of_file(folder / "three").size());
  CHECK(log_size(checkpointed(plain, 3)) < text_of_file(folder / "three").size() + 64 * 1024);
}

TEST_CASE("a flipped bit in a checkpoint: dataset, step, layer and block are named") {
  const Folder folder;
  const std::string path = folder / "a";
  std::mt19937 random(3);
  int named = 0, all = 0;
  for (const char* policy : {"full", "digest"}) {
    const LogHeader header = header_with(policy, 2);
    write_log(path, header, {true});
    for (const char* name : {"recurrent", "conv"})
      for (std::size_t c = 0; c < 3; ++c)
        for (std::size_t slot = 0; slot < 2; ++slot)
          for (std::size_t i = 0; i < header.checkpoint_blocks.size(); ++i) {
            const auto [offset, bytes] = block_entry(path, header, name, c, slot, i);
            const std::uint64_t at = offset + random() % bytes;
            const unsigned bit = random() % 8;
            flip(path, at, bit);
            const auto log = open_log(path);
            const LogFault fault = log->verify();
            CHECK(contains(fault.dataset, "/checkpoint/"));
            CHECK(fault.step == 2 * static_cast<std::int64_t>(c) + 1);
            const std::string layer = "layer " + std::to_string(header.layers[slot]) + ", ";
            CHECK_MESSAGE(contains(fault.what, layer), fault.what);
            const std::string block = layer + "block " + std::to_string(header.checkpoint_blocks[i]);
            const bool found = contains(fault.what, block) && fault.dataset == std::string("/checkpoint/") + name;
            CHECK_MESSAGE((found || contains(fault.what, "a block that events changed")), fault.what);
            named += found, ++all;
            HostPool pool(header.model, header.layers);
            const std::string refused = error_of([&] { log->read_checkpoint(fault.step, header.layers[slot], pool); });
            CHECK_MESSAGE(contains(refused, "do not match the pool digest"), refused);
            CHECK(contains(error_of([&] { resume_log(path, header, {}); }), "it cannot be resumed"));
            flip(path, at, bit);
          }
  }
  CHECK(named * 10 >= all * 9);  // but for a block that only an event wrote
  CHECK(all == 120);
}

TEST_CASE("a flipped pool digest at a checkpoint is told from changed bytes") {
  const Folder folder;
  const std::string path = folder / "a";
  write_log(path, header_with("digest", 2));
  const auto [offset, bytes] = entry(path, "digest", "pool", h5::Type::u64, 2, 3);
  flip(path, offset + bytes - 1, 5);
  const LogFault fault = open_log(path)->verify();
  CHECK(fault.dataset == "/digest/pool");
  CHECK(fault.step == 3);
  CHECK(contains(fault.what, "layer 2"));
}

TEST_CASE("what a header or a file says of its checkpoints is checked") {
  const Folder folder;
  const LogHeader good = header_with("digest", 2);
  LogHeader bad = good;
  bad.checkpoint_blocks = {1, 3, 2};
  CHECK(contains(error_of([&] { create_log(folder / "a", bad, {}); }), "expected more than 3, found 2"));
  bad.checkpoint_blocks = {1, 2, 3, 4, 6};
  CHECK(contains(error_of([&] { create_log(folder / "a", bad, {}); }), "expected 0..5, found 6"));
  bad.checkpoint_blocks = {1, 2, 3, 5};
  CHECK(contains(error_of([&] { create_log(folder / "a", bad, {}); }), "expected block 4 of step"));
  bad = good;
  bad.checkpoint_every = -1;
  CHECK(contains(error_of([&] { create_log(folder / "a", bad, {}); }), "every:M"));
  CHECK(folder.entries() == 0);

  const std::string path = folder / "a";
  write_log(path, good);
  for (const char* name : {"step", "block"})
    for (unsigned bit = 0; bit < 8; ++bit) {
      const auto [offset, bytes] = entry(path, "checkpoint", name, h5::Type::i32, 1, 1);
      flip(path, offset, bit);
      const std::string text = error_of([&] { open_log(path); });
      CHECK_MESSAGE((contains(text, path) && (contains(text, "checkpoint") || contains(text, "/steps:"))), text);
      flip(path, offset, bit);
    }
  CHECK(open_log(path)->verify().dataset == "");
}

TEST_CASE("a block that nothing named has changed: a checkpoint refuses to leave it out") {
  const Folder folder;
  const LogHeader header = header_with("digest", 6);
  FakeStream stream(kSteps, kRows, header.model);
  const auto writer = create_log(folder / "a", header, {false, 0, true});
  const std::string text = error_of([&] { fake_run(stream, header, *writer, true); });
  CHECK_MESSAGE(contains(text, ": step 5, layer 0: a block that no row or event named has changed"), text);
  CHECK(writer->committed() == 5);
}
