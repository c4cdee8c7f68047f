#include "check/norm_batteries.hpp"

#include <algorithm>
#include <cstring>
#include <sstream>

#include "check/norm_share.hpp"
#include "check/norm_words.hpp"
#include "check/scene.hpp"
#include "synth/values.hpp"

namespace gdnsim {
namespace {

constexpr int kRepeats = 50;
constexpr std::int64_t kContents = 64;        // rows that the batches of battery L1 are made of
constexpr std::int64_t kMostLaunches = 8192;  // of one size of parts: beyond it they are spread over the full batch
constexpr double kWildRate = 0.01;

/// Rows from number `first` on. Where `wild`, one in four has NaNs, infinities, denormals and zeros, and gates that
/// saturate; one in eight is denormal; and the weight has -0.
NormRows make_rows(const NormSpec& spec, std::int64_t rows, bool wild, std::int64_t first = 0) {
  const std::size_t word = size_of(spec.act), bytes = static_cast<std::size_t>(spec.width) * word;
  const SpecialRecipe specials = wild_words(kWildRate);
  NormRows made;
  made.x.resize(static_cast<std::size_t>(rows) * bytes), made.weight.resize(bytes);
  if (spec.gated) made.z.resize(made.x.size());
#pragma omp parallel for schedule(static)
  for (std::int64_t row = 0; row < rows; ++row)
    for (auto [words, tensor] : {std::pair{&made.x, Tensor::x}, {&made.z, Tensor::z}}) {
      if (words->empty()) continue;
      const auto part = std::span(*words).subspan(static_cast<std::size_t>(row) * bytes, bytes);
      const Address address{21, tensor, 0, static_cast<std::uint32_t>(first + row), 0};
      const bool special = wild && row % 4 == 3, tiny = wild && row % 8 == 1 && tensor == Tensor::x;
      const float deviation = tiny ? tiny_deviation(spec.act) : special && tensor == Tensor::z ? 30.0f : 1.0f;
      fill({Draw::Kind::normal, 0, deviation}, address, spec.act, part);
      if (special) sprinkle(specials, address, spec.act, part);
    }
  // Around 1 where that is the factor, around 0 where the offset makes the 1.
  fill({Draw::Kind::normal, 1 - spec.weight_offset, 0.1f}, {21, Tensor::norm_weight}, spec.act, made.weight);
  for (std::size_t i = 5; wild && i < static_cast<std::size_t>(spec.width); i += 50) {  // -0
    std::memset(made.weight.data() + i * word, 0, word);
    made.weight[(i + 1) * word - 1] = std::byte{0x80};
  }
  return made;
}

/// Copies of the rows with these numbers, one behind another.
Bytes chosen(const Bytes& from, std::size_t bytes, const std::vector<std::int64_t>& rows) {
  Bytes to(from.empty() ? 0 : rows.size() * bytes);
  for (std::size_t i = 0; i < rows.size() && !from.empty(); ++i)
    std::memcpy(to.data() + i * bytes, from.data() + static_cast<std::size_t>(rows[i]) * bytes, bytes);
  return to;
}

}  // namespace

NormOutputs NormBatteries::run(Backend& backend, const NormArgs& args) {
  NormOutputs outputs;
  outputs.out.assign(args.x.size(), std::byte{0xFF});
  outputs.rstd.assign(static_cast<std::size_t>(args.rows), std::bit_cast<float>(0xFFFFFFFFu));
  backend.norm(args, outputs);
  outputs.out.resize(args.x.size(), std::byte{0xFF});
  outputs.rstd.resize(static_cast<std::size_t>(args.rows), std::bit_cast<float>(0xFFFFFFFFu));
  return outputs;
}

void NormBatteries::repeats() {
  Tally tally(stage_, Battery::L0, "50 repeats", describe(spec_));
  const std::int64_t rows = std::max<std::int64_t>(1, elements(1 << 19) / spec_.width);
  const NormRows made = make_rows(spec_, rows, true), other = make_rows(spec_, rows, false, rows);
  const NormOutputs first = run(*subject_.backend, args(rows, made));
  for (int repeat = 1; repeat < kRepeats; ++repeat) {
    Backend& backend = is_poisoned(repeat) ? *subject_.poisoned : *subject_.backend;
    if (follows_another(repeat)) run(backend, args(rows, other));
    compare_all(tally, first, run(backend, args(rows, made)), "repeats 1 and " + std::to_string(repeat + 1));
  }
  tally.count_launches(kRepeats);
  gates_.push_back(tally.finish());
}

void NormBatteries::batches() {
  made_ = make_rows(spec_, kContents, true);
  alone_.clear();
  for (std::int64_t content = 0; content < kContents; ++content) alone_.push_back(run_contents({content}));
  const auto sizes = batch_sizes(most_rows());
  for (bool permuted : {false, true}) {
    Tally tally(stage_, Battery::L1, permuted ? "permuted rows" : "batch sizes", describe(spec_));
    tally.note(rows_asked(sizes));
    std::int64_t good = 1;
    for (const std::int64_t size : sizes) {
      const bool differed = tally.differs();
      compare_batch(tally, size, permuted, "1 and " + std::to_string(size) + " rows");
      tally.count_launches(1);
      if (tally.differs() && !differed && size != good)
        narrow(tally, {good, size},
               [&](Tally& trial, std::int64_t between) { compare_batch(trial, between, permuted, ""); });
      if (!tally.differs()) good = size;
    }
    gates_.push_back(tally.finish());
  }
}

void NormBatteries::parts() {
  const std::int64_t rows = elements(std::int64_t{262144} * 128) / spec_.width;
  made_ = make_rows(spec_, rows, true);
  full_ = run(*subject_.backend, args(rows, made_));
  const std::string among = std::to_string(rows) + " rows";
  for (std::int64_t size : {std::int64_t{1}, std::int64_t{7}, std::int64_t{4097}, rows / 4, rows / 2}) {
    if (size < 1 || size >= rows) continue;
    const std::int64_t launches = (rows + size - 1) / size, each = (launches + kMostLaunches - 1) / kMostLaunches;
    const std::string some = each == 1 ? "" : std::to_string((launches + each - 1) / each) + " ";
    Tally tally(stage_, Battery::L1, some + "parts of " + std::to_string(size) + " of " + among, describe(spec_));
    for (std::int64_t launch = 0; launch < launches; launch += each)
      compare_part(tally, launch * size, std::min(size, rows - launch * size));
    if (tally.differs())  // the first rows of the full batch, in batches of one size and the next
      narrow(tally, {rows, size}, [&](Tally& trial, std::int64_t between) { compare_part(trial, 0, between); });
    gates_.push_back(tally.finish());
  }
}

void NormBatteries::against_reference(std::int64_t rows) {
  if (subject_.is_reference_norm()) return;
  Tally tally(stage_, Battery::L2, "against golden", describe(spec_));
  const NormRows made = make_rows(spec_, rows, true);
  compare_all(tally, run(*subject_.reference, args(rows, made)), run(*subject_.poisoned, args(rows, made)),
              subject_.against());
  tally.count_launches(2);
  gates_.push_back(tally.finish());
}

void NormBatteries::against_rules(std::int64_t rows) {
  Tally tally(stage_, Battery::L2, kAgainstRules, describe(spec_));
  const NormRows made = make_rows(spec_, rows, true);
  compare_all(tally, written_out(args(rows, made)), run(*subject_.poisoned, args(rows, made)), rules_and_backend());
  tally.count_launches(1);
  gates_.push_back(tally.finish());
}

void NormBatteries::shared_root(std::int64_t rows) {
  Tally tally(stage_, Battery::L2, "rstd as in the gated norm", describe(spec_));
  NormSpec gated = spec_;
  gated.gated = true;
  NormRows made = make_rows(gated, rows, true);
  const NormOutputs other =
      run(*subject_.backend, {gated, subject_.options.contract, rows, made.x, made.z, made.weight});
  made.z.clear();
  const NormOutputs plain = run(*subject_.backend, args(rows, made));
  for (std::size_t row = 0; row < plain.rstd.size(); ++row)
    tally.compare(Tap::rstd, {DType::f32, 1, 1}, word(other.rstd[row]), word(plain.rstd[row]), "gated and plain",
                  static_cast<std::int64_t>(row));
  tally.count_launches(2);
  gates_.push_back(tally.finish());
}

void NormBatteries::accuracy(std::int64_t rows) {
  Accuracy accuracy;
  const NormRows made = make_rows(spec_, rows, false);
  const NormOutputs got = run(*subject_.backend, args(rows, made));
  std::vector<double> exact(static_cast<std::size_t>(rows * spec_.width));
  exact_norm(args(rows, made), exact);
  accuracy.add(spec_.act, got.out, exact);
  Tally tally(stage_, Battery::accuracy, std::to_string(rows) + " rows", describe(spec_));
  if (is_written_out(spec_, subject_.options.contract))
    compare_all(tally, written_out(args(rows, made)), got, rules_and_backend());
  Gate gate = tally.finish();
  gate.launches = 1, gate.compared = accuracy.compared;
  gate.correctly_rounded = accuracy.share(), gate.worst_ulp = accuracy.worst;
  judge(gate);
  gates_.push_back(gate);
}

void NormBatteries::time(std::int64_t rows) {
  const NormRows made = make_rows(spec_, rows, false);
  NormArgs timed = args(rows, made);
  timed.timed = subject_.options.reduced ? 1 : 20;
  NormOutputs outputs;
  subject_.backend->norm(timed, outputs);
  Gate gate;
  gate.stage = stage_, gate.battery = Battery::time, gate.name = std::to_string(rows) + " rows";
  gate.shape = describe(spec_), gate.launches = static_cast<std::uint64_t>(timed.timed);
  gate.seconds = outputs.seconds;
  const double bytes = static_cast<double>(made.x.size() * 2 + made.z.size()), rate = subject_.backend->memory_rate();
  if (rate > 0) gate.of_memory = bytes / rate / outputs.seconds;
  gate.verdict = Gate::Verdict::measured;
  gates_.push_back(gate);
}

NormOutputs NormBatteries::run_contents(const std::vector<std::int64_t>& contents) const {
  const NormRows rows{chosen(made_.x, row_bytes(), contents), chosen(made_.z, row_bytes(), contents), made_.weight};
  return run(*subject_.backend, args(static_cast<std::int64_t>(contents.size()), rows));
}

void NormBatteries::compare_row(Tally& tally, const NormOutputs& want, std::int64_t w, const NormOutputs& got,
                                std::int64_t g, const std::string& between) const {
  const auto row = [&](const NormOutputs& outputs, std::int64_t i) {
    return std::span(outputs.out).subspan(static_cast<std::size_t>(i) * row_bytes(), row_bytes());
  };
  tally.compare(Tap::rstd, {DType::f32, 1, 1}, word(want.rstd[static_cast<std::size_t>(w)]),
                word(got.rstd[static_cast<std::size_t>(g)]), between, g);
  tally.compare(Tap::norm_out, {spec_.act, 1, spec_.width}, row(want, w), row(got, g), between, g);
}

void NormBatteries::compare_all(Tally& tally, const NormOutputs& want, const NormOutputs& got,
                                const std::string& between) const {
  const auto rows = static_cast<std::int64_t>(want.rstd.size());
  for (std::int64_t row = 0; row < rows; ++row) compare_row(tally, want, row, got, row, between);
}

void NormBatteries::compare_batch(Tally& tally, std::int64_t size, bool permuted, const std::string& between) const {
  std::vector<std::int64_t> contents(static_cast<std::size_t>(size));
  for (std::int64_t i = 0; i < size; ++i)  // odd factors turn 64 numbers into 64 others
    contents[static_cast<std::size_t>(i)] = permuted ? (i * (2 * size + 1) + size) % kContents : i % kContents;
  const NormOutputs got = run_contents(contents);
  for (std::int64_t i = 0; i < size; ++i)
    compare_row(tally, alone_[static_cast<std::size_t>(contents[static_cast<std::size_t>(i)])], 0, got, i, between);
}

void NormBatteries::compare_part(Tally& tally, std::int64_t begin, std::int64_t size) const {
  const std::size_t at = static_cast<std::size_t>(begin) * row_bytes(),
                    bytes = static_cast<std::size_t>(size) * row_bytes();
  const auto part = [&](const Bytes& all) {
    return all.empty() ? std::span<const std::byte>() : std::span<const std::byte>(all).subspan(at, bytes);
  };
  const NormOutputs got =
      run(*subject_.backend, {spec_, subject_.options.contract, size, part(made_.x), part(made_.z), made_.weight});
  const std::string between = std::to_string(size) + " and " + std::to_string(full_.rstd.size()) + " rows";
  for (std::int64_t row = 0; row < size; ++row) compare_row(tally, full_, begin + row, got, row, between);
  tally.count_launches(1);
}

void NormBatteries::narrow(Tally& tally, Neighbours apart,
                           const std::function<void(Tally&, std::int64_t)>& compare_size) const {
  std::optional<Violation> first = tally.finish().first;
  const Neighbours sizes = narrow_down(apart, [&](std::int64_t size) {
    Tally trial(stage_, Battery::L1, "", "");
    compare_size(trial, size);
    if (trial.differs()) first = trial.finish().first;
    return !trial.differs();
  });
  first->between = between_sizes(sizes);
  tally.narrow(*first);
}

/// Every word where its rules are written out; and the share of those that are right where one is expected.
void NormBatteries::judge(Gate& gate) const {
  const double share = *gate.correctly_rounded;
  const Share expected = expected_share(spec_, subject_.options.contract);
  const bool words = is_written_out(spec_, subject_.options.contract);
  const bool off = gate.first || (expected.low > 0 && (share < expected.low || share > expected.high));
  gate.verdict = gate.compared == 0          ? Gate::Verdict::empty
                 : off                       ? Gate::Verdict::violated
                 : words || expected.low > 0 ? Gate::Verdict::held
                                             : Gate::Verdict::measured;
  std::ostringstream bound;
  bound << expected.why;
  if (expected.low > 0) bound << ": expected " << expected.low << " to " << expected.high << " correctly rounded";
  if (words) bound << (*expected.why != 0 ? "; " : "") << "every word is compared with its rules, written out";
  gate.note = bound.str();
}

}  // namespace gdnsim
