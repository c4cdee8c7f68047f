// Choosing a backend: what "auto" does with a cuda that cannot be made, refuses a contract, or works.
#include <doctest/doctest.h>

#include <gdnsim/backend.hpp>
#include <gdnsim/error.hpp>

using namespace gdnsim;

namespace {

/// A cuda whose device computes the approximate functions otherwise (or not), as `refusal` says.
class FakeCuda final : public Backend {
 public:
  explicit FakeCuda(std::string refusal) : refusal_(std::move(refusal)) {}
  std::string name() const override { return "cuda"; }
  std::string description() const override { return "a fake"; }
  std::string refuses(const Contract& contract) const override { return contract.exp == Exp::exact ? "" : refusal_; }
  std::unique_ptr<Pool> make_pool(const Model&, std::vector<int>) override { return nullptr; }
  void prepare(const Stream&, const std::vector<int>&) override {}
  void step(const StepArgs&, Pool&, StepOutputs&) override {}

 private:
  const std::string refusal_;
};

}  // namespace

TEST_CASE("backend: auto takes a cuda that works") {
  CHECK(choose_auto([] { return std::make_unique<FakeCuda>(""); }, {}).backend->name() == "cuda");
}

TEST_CASE("backend: auto falls back to golden with the reason") {
  const auto throws = []() -> std::unique_ptr<Backend> { throw error("cuda: no device"); };
  const ChosenBackend absent = choose_auto(throws, {});
  CHECK(absent.backend->name() == "golden");
  CHECK(absent.reason == "golden, because cuda: no device");
  const ChosenBackend other = choose_auto([] { return std::make_unique<FakeCuda>("cuda: ex2 differs"); }, {});
  CHECK(other.backend->name() == "golden");
  CHECK(other.reason == "golden, because cuda: ex2 differs");
}

TEST_CASE("backend: an unknown name is an error") { CHECK_THROWS_AS(choose_backend("gpu", {}), Error); }
