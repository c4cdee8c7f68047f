// The batteries of the norms by themselves: the gated norm of a head, and the decoder's plain one.
#include <algorithm>
#include <cstring>

#include "check_scene.hpp"
#include "gdnsim/error.hpp"
#include "synth_values.hpp"

namespace gdnsim {
namespace {

constexpr int kRepeats = 50;
constexpr std::int64_t kMostRows = 4097;  // of a batch of battery L1
constexpr std::int64_t kContents = 64;    // rows that the batches of battery L1 are made of
constexpr std::int64_t kMostLaunches =
    8192;  // of one size of sub-batches: beyond it they are spread over the full batch

/// Rows, gates and a weight, made up. One row in four may hold NaNs, infinities, denormals and zeros.
struct NormRows {
  Bytes x, z, weight;
};

NormRows make_rows(const NormSpec& spec, std::int64_t rows, bool wild) {
  using Special = SpecialRecipe::Kind;
  SpecialRecipe specials;
  specials.rate = 0.01;
  specials.kinds = {Special::nan,  Special::payload,    Special::inf,      Special::minus_inf,
                    Special::zero, Special::minus_zero, Special::denormal, Special::largest};
  const std::size_t word = size_of(spec.act), bytes = static_cast<std::size_t>(spec.width) * word;
  NormRows made;
  made.x.resize(static_cast<std::size_t>(rows) * bytes), made.weight.resize(bytes);
  if (spec.gated) made.z.resize(made.x.size());
#pragma omp parallel for schedule(static)
  for (std::int64_t row = 0; row < rows; ++row)
    for (auto [words, tensor] : {std::pair{&made.x, Tensor::x}, {&made.z, Tensor::z}}) {
      if (words->empty()) continue;
      const auto part = std::span(*words).subspan(static_cast<std::size_t>(row) * bytes, bytes);
      const Address address{21, tensor, 0, static_cast<std::uint32_t>(row), 0};
      fill({}, address, spec.act, part);
      if (wild && row % 4 == 3) sprinkle(specials, address, spec.act, part);
    }
  // Around 1 where that is the factor, around 0 where the offset makes the 1.
  fill({Draw::Kind::normal, 1 - spec.weight_offset, 0.1f}, {21, Tensor::norm_weight}, spec.act, made.weight);
  for (std::size_t i = 5; wild && i < static_cast<std::size_t>(spec.width); i += 50) {  // -0
    std::memset(made.weight.data() + i * word, 0, word);
    made.weight[(i + 1) * word - 1] = std::byte{0x80};
  }
  return made;
}

/// The share of correctly rounded elements that is right.
struct Share {
  double low, high;
  const char* why;
};

/// Copies of the rows with these numbers, one behind another.
Bytes chosen(const Bytes& from, std::size_t bytes, const std::vector<std::int64_t>& rows) {
  Bytes to(from.empty() ? 0 : rows.size() * bytes);
  for (std::size_t i = 0; i < rows.size() && !from.empty(); ++i)
    std::memcpy(to.data() + i * bytes, from.data() + static_cast<std::size_t>(rows[i]) * bytes, bytes);
  return to;
}

/// One norm under examination.
class NormBatteries {
 public:
  NormBatteries(const Subject& subject, CheckStage stage, const NormSpec& spec, std::vector<Gate>& gates)
      : subject_(subject), stage_(stage), spec_(spec), gates_(gates) {}

  void repeats() {
    Tally tally(stage_, Battery::L0, "50 repeats", describe(spec_));
    const std::int64_t rows = std::max<std::int64_t>(1, elements(1 << 19) / spec_.width);
    const NormRows made = make_rows(spec_, rows, true);
    const NormOutputs first = run(*subject_.backend, rows, made.x, made.z, made.weight);
    for (int repeat = 1; repeat < kRepeats; ++repeat) {
      Backend& backend = repeat % 2 == 0 ? *subject_.backend : *subject_.poisoned;
      const NormOutputs again = run(backend, rows, made.x, made.z, made.weight);
      compare_all(tally, first, again, "repeats 1 and " + std::to_string(repeat + 1));
    }
    tally.count_launches(kRepeats);
    gates_.push_back(tally.finish());
  }

  /// Batches of 64 contents, in their order and permuted, against each content alone.
  void batches() {
    made_ = make_rows(spec_, kContents, true);
    alone_.clear();
    for (std::int64_t content = 0; content < kContents; ++content) alone_.push_back(run_contents({content}));
    const auto sizes =
        batch_sizes(std::max<std::int64_t>(64, std::min(kMostRows, elements(4097 * 2048) / spec_.width)));
    for (bool permuted : {false, true}) {
      Tally tally(stage_, Battery::L1, permuted ? "permuted rows" : "batch sizes", describe(spec_));
      std::int64_t good = 1;
      for (const std::int64_t size : sizes) {
        const bool differed = tally.differs();
        compare_batch(tally, size, permuted, "1 and " + std::to_string(size) + " rows");
        tally.count_launches(1);
        if (tally.differs() && !differed) narrow_batch(tally, {good, size}, permuted);
        if (!tally.differs()) good = size;
      }
      gates_.push_back(tally.finish());
    }
  }

  /// A full batch against parts of it.
  void parts() {
    const std::int64_t rows = elements(std::int64_t{262144} * 128) / spec_.width;
    made_ = make_rows(spec_, rows, true);
    full_ = run(*subject_.backend, rows, made_.x, made_.z, made_.weight);
    const std::string among = std::to_string(rows) + " rows";
    for (std::int64_t size : {std::int64_t{1}, std::int64_t{7}, std::int64_t{4097}, rows / 4, rows / 2}) {
      if (size < 1 || size >= rows) continue;
      Tally tally(stage_, Battery::L1, "parts of " + std::to_string(size) + " of " + among, describe(spec_));
      const std::int64_t launches = (rows + size - 1) / size, each = (launches + kMostLaunches - 1) / kMostLaunches;
      for (std::int64_t launch = 0; launch < launches; launch += each)
        compare_part(tally, launch * size, std::min(size, rows - launch * size));
      if (tally.differs()) narrow_part(tally, {rows, size});
      gates_.push_back(tally.finish());
    }
  }

  void against_reference(std::int64_t rows) {
    const std::string name = "against golden";
    if (subject_.is_reference_norm()) return;
    Tally tally(stage_, Battery::L2, name, describe(spec_));
    const NormRows made = make_rows(spec_, rows, true);
    const NormOutputs want = run(*subject_.reference, rows, made.x, made.z, made.weight);
    const NormOutputs got = run(*subject_.poisoned, rows, made.x, made.z, made.weight);
    compare_all(tally, want, got, subject_.against());
    tally.count_launches(2);
    gates_.push_back(tally.finish());
  }

  /// The same rows gated and plain: one root.
  void shared_root(std::int64_t rows) {
    Tally tally(stage_, Battery::L2, "rstd as in the gated norm", describe(spec_));
    NormSpec gated = spec_;
    gated.gated = true;
    const NormRows made = make_rows(gated, rows, true);
    const NormOutputs plain = run(*subject_.backend, rows, made.x, {}, made.weight);
    NormOutputs other;
    subject_.backend->norm({gated, subject_.options.contract, rows, made.x, made.z, made.weight}, other);
    for (std::size_t row = 0; row < plain.rstd.size(); ++row)
      tally.compare(Tap::rstd, {DType::f32, 1, 1}, word(other.rstd[row]), word(plain.rstd[row]), "gated and plain",
                    static_cast<std::int64_t>(row));
    tally.count_launches(2);
    gates_.push_back(tally.finish());
  }

  void accuracy(std::int64_t rows) {
    Accuracy accuracy;
    const NormRows made = make_rows(spec_, rows, false);
    const NormOutputs got = run(*subject_.backend, rows, made.x, made.z, made.weight);
    std::vector<double> exact(static_cast<std::size_t>(rows * spec_.width));
    exact_norm(args(rows, made.x, made.z, made.weight), exact);
    accuracy.add(spec_.act, got.out, exact);
    Gate gate;
    gate.stage = stage_, gate.battery = Battery::accuracy, gate.name = std::to_string(rows) + " rows";
    gate.shape = describe(spec_), gate.launches = 1, gate.compared = accuracy.compared;
    gate.correctly_rounded = accuracy.share(), gate.worst_ulp = accuracy.worst;
    judge(gate);
    gates_.push_back(gate);
  }

  void time(std::int64_t rows) {
    const NormRows made = make_rows(spec_, rows, false);
    NormArgs timed = args(rows, made.x, made.z, made.weight);
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

 private:
  std::int64_t elements(std::int64_t all) const { return subject_.options.reduced ? all / 128 : all; }
  static std::span<const std::byte> word(const float& x) { return std::as_bytes(std::span(&x, 1)); }
  std::size_t row_bytes() const { return static_cast<std::size_t>(spec_.width) * size_of(spec_.act); }

  NormArgs args(std::int64_t rows, std::span<const std::byte> x, std::span<const std::byte> z,
                std::span<const std::byte> weight) const {
    return {spec_, subject_.options.contract, rows, x, z, weight};
  }
  NormOutputs run(Backend& backend, std::int64_t rows, std::span<const std::byte> x, std::span<const std::byte> z,
                  std::span<const std::byte> weight) const {
    NormOutputs outputs;
    backend.norm(args(rows, x, z, weight), outputs);
    return outputs;
  }
  NormOutputs run_contents(const std::vector<std::int64_t>& contents) const {
    return run(*subject_.backend, static_cast<std::int64_t>(contents.size()), chosen(made_.x, row_bytes(), contents),
               chosen(made_.z, row_bytes(), contents), made_.weight);
  }

  /// Row `w` of `want` with row `g` of `got`.
  void compare_row(Tally& tally, const NormOutputs& want, std::int64_t w, const NormOutputs& got, std::int64_t g,
                   const std::string& between) const {
    const auto row = [&](const NormOutputs& outputs, std::int64_t i) {
      return std::span(outputs.out).subspan(static_cast<std::size_t>(i) * row_bytes(), row_bytes());
    };
    tally.compare(Tap::rstd, {DType::f32, 1, 1}, word(want.rstd[static_cast<std::size_t>(w)]),
                  word(got.rstd[static_cast<std::size_t>(g)]), between, g);
    tally.compare(Tap::norm_out, {spec_.act, 1, spec_.width}, row(want, w), row(got, g), between, g);
  }
  void compare_all(Tally& tally, const NormOutputs& want, const NormOutputs& got, const std::string& between) const {
    const auto rows = static_cast<std::int64_t>(want.rstd.size());
    for (std::int64_t row = 0; row < rows; ++row) compare_row(tally, want, row, got, row, between);
  }

  void compare_batch(Tally& tally, std::int64_t size, bool permuted, const std::string& between) const {
    std::vector<std::int64_t> contents(static_cast<std::size_t>(size));
    for (std::int64_t i = 0; i < size; ++i)  // odd factors turn 64 numbers into 64 others
      contents[static_cast<std::size_t>(i)] = permuted ? (i * (2 * size + 1) + size) % kContents : i % kContents;
    const NormOutputs got = run_contents(contents);
    for (std::int64_t i = 0; i < size; ++i)
      compare_row(tally, alone_[static_cast<std::size_t>(contents[static_cast<std::size_t>(i)])], 0, got, i, between);
  }

  void narrow_batch(Tally& tally, Neighbours apart, bool permuted) const {
    if (apart.good == apart.bad) return;
    std::optional<Violation> first = tally.finish().first;
    const Neighbours sizes = narrow_down(apart, [&](std::int64_t size) {
      Tally trial(stage_, Battery::L1, "", "");
      compare_batch(trial, size, permuted, "");
      if (trial.differs()) first = trial.finish().first;
      return !trial.differs();
    });
    first->between = between_sizes(sizes);
    tally.narrow(*first);
  }

  void compare_part(Tally& tally, std::int64_t begin, std::int64_t size) const {
    const std::size_t at = static_cast<std::size_t>(begin) * row_bytes(),
                      bytes = static_cast<std::size_t>(size) * row_bytes();
    const auto part = [&](const Bytes& all) {
      return all.empty() ? std::span<const std::byte>() : std::span<const std::byte>(all).subspan(at, bytes);
    };
    const NormOutputs got = run(*subject_.backend, size, part(made_.x), part(made_.z), made_.weight);
    const std::string between = std::to_string(size) + " and " + std::to_string(full_.rstd.size()) + " rows";
    for (std::int64_t row = 0; row < size; ++row) compare_row(tally, full_, begin + row, got, row, between);
    tally.count_launches(1);
  }

  /// The first rows of the full batch, in batches of one size and the next.
  void narrow_part(Tally& tally, Neighbours apart) const {
    std::optional<Violation> first = tally.finish().first;
    Neighbours sizes = narrow_down(apart, [&](std::int64_t size) {
      Tally trial(stage_, Battery::L1, "", "");
      compare_part(trial, 0, size);
      if (trial.differs()) first = trial.finish().first;
      return !trial.differs();
    });
    first->between = between_sizes(sizes);
    tally.narrow(*first);
  }

  /// What the convention's roundings to bf16 leave of normal rows: one, at the end; three of the hf convention, or two without a
  /// gate.
  void judge(Gate& gate) const {
    const double share = *gate.correctly_rounded;
    gate.verdict = Gate::Verdict::measured;
    if (gate.compared == 0) gate.verdict = Gate::Verdict::empty;
    if (spec_.act != DType::bf16 || gate.compared == 0) return;
    const bool hf = subject_.options.contract.norm == Norm::hf;
    const Share expected = !hf && spec_.gated ? Share{0.99998, 1, "rounded once"}
                           : !hf              ? Share{0.9999, 1, "rounded once, after a longer sum"}
                           : spec_.gated      ? Share{0.645, 0.665, "rounded three times"}
                                              : Share{0.72, 0.78, "rounded twice"};
    gate.verdict = share >= expected.low && share <= expected.high ? Gate::Verdict::held : Gate::Verdict::violated;
    std::ostringstream bound;
    bound << expected.why << ": expected " << expected.low << " to " << expected.high << " correctly rounded";
    gate.note = bound.str();
  }

  const Subject& subject_;
  const CheckStage stage_;
  const NormSpec spec_;
  std::vector<Gate>& gates_;
  NormRows made_;
  NormOutputs full_;
  std::vector<NormOutputs> alone_;  // [kContents]
};

/// A gate for each norm that the contract leaves undefined, so that nothing goes missing in silence.
bool is_defined(const Subject& subject, CheckStage stage, const NormSpec& spec, std::vector<Gate>& gates) {
  const std::string why = undefined_because(subject.options.contract, spec);
  if (!why.empty()) gates.push_back(skipped_gate(stage, subject.options.batteries.front(), "any", describe(spec), why));
  return why.empty();
}

/// The step's own norm against the operator on its core_out: two ways to one set of bits.
void step_against_rows(const Subject& subject, std::vector<Gate>& gates) {
  constexpr int kRows = 9;
  StepScene scene(subject.options, kRows);
  const Model& model = scene.model();
  if (!undefined_because(subject.options.contract, model).empty()) return;
  const NormSpec spec{model.V, model.act_dtype, true, model.norm_gate, *model.norm_eps, 0};
  Tally tally(CheckStage::gated_norm, Battery::L2, "the step's norm against the norm alone", describe(spec));
  const CheckBatch batch = scene.all_watched(kRows);
  const auto pool = subject.backend->make_pool(model, {0});
  scene.fill(*pool);
  subject.backend->prepare(scene.stream(), {0});
  StepInputs inputs;
  StepOutputs outputs;
  outputs.want = {Tap::core_out, Tap::rstd, Tap::norm_out};
  scene.place(batch, *pool);
  scene.gather(batch, inputs);
  subject.backend->step({0, scene.plan(batch), inputs, subject.options.contract}, *pool, outputs);
  NormOutputs rows;
  const std::int64_t count = static_cast<std::int64_t>(batch.content.size()) * model.HV;
  subject.backend->norm(
      {spec, subject.options.contract, count, outputs[Tap::core_out], inputs.z, scene.stream().params(0).norm_weight},
      rows);
  tally.compare(Tap::rstd, {DType::f32, count, 1}, std::as_bytes(std::span(rows.rstd)), outputs[Tap::rstd],
                "the norm alone and the step", 0);
  tally.compare(Tap::norm_out, {model.act_dtype, count, model.V}, rows.out, outputs[Tap::norm_out],
                "the norm alone and the step", 0);
  tally.count_launches(2);
  gates.push_back(tally.finish());
}

void check_gated(const Subject& subject, int width, std::vector<Gate>& gates) {
  const bool reduced = subject.options.reduced;
  const NormSpec usual{width, DType::bf16, true, NormGate::silu, 1e-6f, 0};
  const CheckStage stage = CheckStage::gated_norm;
  if (is_defined(subject, stage, usual, gates)) {
    subject.begin("gated norm by itself");
    NormBatteries batteries(subject, stage, usual, gates);
    if (subject.has(Battery::L0)) batteries.repeats();
    if (subject.has(Battery::L1)) batteries.batches(), batteries.parts();
    if (subject.has(Battery::L2)) step_against_rows(subject, gates);
    if (subject.has(Battery::time)) batteries.time(reduced ? 4096 : 262144);
  }
  for (DType act : {DType::bf16, DType::f16, DType::f32})
    for (NormGate gate : {NormGate::silu, NormGate::sigmoid})
      for (float offset : {0.0f, 1.0f}) {
        const NormSpec spec{width, act, true, gate, 1e-6f, offset};
        if (!undefined_because(subject.options.contract, spec).empty()) {
          if (act != usual.act && gate == NormGate::silu && offset == 0) is_defined(subject, stage, spec, gates);
          continue;
        }
        NormBatteries batteries(subject, stage, spec, gates);
        const bool first = act == DType::bf16 && gate == NormGate::silu && offset == 0;
        if (subject.has(Battery::L2)) batteries.against_reference(reduced ? 64 : 1025);
        if (subject.has(Battery::accuracy))
          batteries.accuracy(reduced ? (first ? 2048 : 1024) : (first ? 262144 : 8192));
      }
}

void check_plain(const Subject& subject, std::vector<Gate>& gates) {
  const bool reduced = subject.options.reduced;
  const CheckStage stage = CheckStage::rmsnorm;
  const std::vector<int> widths = reduced ? std::vector<int>{2048} : std::vector<int>{2048, 4096, 8192};
  for (const int width : widths) {
    const NormSpec usual{width, DType::bf16, false, NormGate::silu, 1e-6f, 1};
    if (!is_defined(subject, stage, usual, gates)) continue;
    subject.begin(describe(usual));
    NormBatteries batteries(subject, stage, usual, gates);
    if (subject.has(Battery::L0)) batteries.repeats();
    if (subject.has(Battery::L1)) batteries.batches(), batteries.parts();
    if (subject.has(Battery::time)) batteries.time(reduced ? 256 : 16384);
    for (DType act : {DType::bf16, DType::f16, DType::f32})
      for (float offset : {1.0f, 0.0f}) {
        const NormSpec spec{width, act, false, NormGate::silu, 1e-6f, offset};
        NormBatteries each(subject, stage, spec, gates);
        if (subject.has(Battery::L2)) each.against_reference(reduced ? 16 : 257), each.shared_root(reduced ? 16 : 257);
        if (subject.has(Battery::accuracy)) each.accuracy(reduced ? 64 : 1024);
      }
  }
}

}  // namespace

void check_norms(const Subject& subject, std::vector<Gate>& gates) {
  const Model model = check_model(subject.options.shape, subject.options.state, 1);
  if (subject.has(CheckStage::gated_norm)) check_gated(subject, model.V, gates);
  if (subject.has(CheckStage::rmsnorm)) check_plain(subject, gates);
}

}  // namespace gdnsim
