// A device that is lost in the middle of a run, acted by a backend that throws what the CUDA one would: one line, and a log whose
// complete steps are there and which goes on to the same bytes. Step by step and within windows.
#include <gdnsim/log.hpp>

#include <filesystem>

#include <doctest/doctest.h>

#include "support/log_files.hpp"

using namespace gdnsim;
using namespace gdnsim::test;

namespace {

constexpr const char* kLost =
    "cuda: cudaStreamSynchronize failed at queue.cpp:19: uncorrectable ECC error encountered "
    "(cudaErrorECCUncorrectable); the "
    "device is lost to this process; see nvidia-smi, then run again with --resume";

/// The fake backend, until it has run so many layers of steps; then nothing works any more, its pool neither.
class LostBackend final : public Backend {
 public:
  LostBackend(int good, int at_once) : left_(good), at_once_(at_once) {}
  std::string name() const override { return "cuda"; }
  std::string description() const override { return "a device that is lost"; }
  std::unique_ptr<Pool> make_pool(const Model& model, std::vector<int> layers) override {
    return fake_.make_pool(model, std::move(layers));
  }
  void prepare(const Stream& stream, const std::vector<int>& layers) override { fake_.prepare(stream, layers); }
  int steps_at_once(const Model&) const override { return at_once_; }
  void step(const StepArgs& args, Pool& pool, StepOutputs& outputs) override {
    if (left_-- <= 0) throw Error(kLost);
    fake_.step(args, pool, outputs);
  }
  bool lost() const { return left_ < 0; }

 private:
  FakeBackend fake_;
  int left_;
  const int at_once_;
};

/// What the run says before it ends.
std::string run_until_lost(const std::string& path, const LogHeader& header, LostBackend& backend) {
  FakeStream stream(kSteps, kRows, header.model);
  const auto writer = create_log(path, header, {});
  const auto pool = backend.make_pool(stream.model(), header.layers);
  const ContractSet contracts = contract_set("golden");
  return error_of([&] {
    simulate({stream, backend, contracts, header.layers, header.first_step + header.steps, header.taps}, *pool,
             *writer);
  });
}

}  // namespace

TEST_CASE("a lost device ends the run with one line and leaves a log that resumes") {
  const Folder folder;
  const std::string reference = folder / "whole", path = folder / "log";
  const LogHeader header = header_of(state_policy_from("every:3"));
  write_log(reference, header);
  const std::string whole = text_of_file(reference);
  int in_a_window = 0;
  for (const int at_once : {1, 4})
    for (int good = 0; good < 14; ++good) {  // two layers, eight steps, one of them opaque
      CAPTURE(at_once);
      CAPTURE(good);
      std::filesystem::remove(path);
      LostBackend backend(good, at_once);
      CHECK(run_until_lost(path, header, backend) == kLost);
      CHECK(backend.lost());
      const std::int64_t complete = open_log(path)->steps();
      CHECK(open_log(path)->verify().dataset == "");
      if (at_once == 1) CHECK(complete == (good / 2 > 2 ? good / 2 + 1 : good / 2));
      in_a_window += at_once > 1 && complete < good / 2;
      const auto writer = resume_log(path, header, {});
      finish_log(*writer, header);
      CHECK((text_of_file(path) == whole));
    }
  CHECK(in_a_window > 0);
}
