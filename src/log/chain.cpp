#include "log/chain.hpp"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <sstream>

#include "gdnsim/error.hpp"
#include "log/checkpoint.hpp"
#include "log/events.hpp"

namespace gdnsim {
namespace {

template <class T>
Chain digest_of(const std::vector<T>& values) {
  return xxh3_128(std::as_bytes(std::span(values)));
}
Chain digest_of(const std::string& text) { return xxh3_128(std::as_bytes(std::span(text))); }

// Floats enter by their bits.
std::uint32_t bits(float value) { return std::bit_cast<std::uint32_t>(value); }

std::string model_text(const LogHeader& header) {
  const Model& m = header.model;
  std::ostringstream text;
  text << "H " << m.H << "\nHV " << m.HV << "\nK " << m.K << "\nV " << m.V << "\nW " << m.W << "\nscale "
       << bits(m.scale) << "\nactivation " << name_of(m.activation) << "\nqk_l2norm " << m.use_qk_l2norm << "\nstate "
       << name_of(m.state_dtype) << "\nconv_state " << name_of(m.conv_state_dtype) << "\nact " << name_of(m.act_dtype)
       << "\nsentinel " << name_of(m.sentinel) << "\nnum_blocks " << m.num_blocks << "\nnorm_eps ";
  if (m.norm_eps) text << bits(*m.norm_eps);
  text << "\nnorm_gate " << name_of(m.norm_gate) << "\ninactive_conv_out " << name_of(m.inactive_conv_out)
       << "\ninactive_core_out " << name_of(m.inactive_core_out) << "\nlayer_ids";
  for (std::int32_t id : m.layer_ids) text << ' ' << id;
  if (m.block_stride != 0 || m.conv_block_stride != 0 || m.index_bits != 64)
    text << "\nstrides " << m.block_stride << ' ' << m.conv_block_stride << ' ' << m.index_bits;
  text << "\nlayers";
  for (int layer : header.layers) text << ' ' << layer;
  return text.str() + "\n";
}

std::string contract_text(const ContractSet& contracts) {
  std::string text;
  for (const Contract* contract : {&contracts.decode, &contracts.mixed}) {
    text += "name " + contract->name + "\n";
    for (const auto& [field, value] : contract_fields(*contract)) {
      Contract golden;
      set_contract_field(golden, field, value);
      if (!added_later(field) || golden != Contract{}) text += field + " " + value + "\n";
    }
  }
  return text;
}

std::string shape_text(const LogHeader& header) {
  std::ostringstream text;
  text << "first_step " << header.first_step << "\nsteps " << header.steps << "\nrows " << header.rows << "\nstate "
       << static_cast<int>(header.state.kind) << ' ' << header.state.n << "\ntaps";
  for (std::size_t i = 0; i < kTaps; ++i)
    if (header.taps.has(static_cast<Tap>(i))) text << ' ' << name_of(static_cast<Tap>(i));
  if (has_checkpoints(header)) {
    text << "\ncheckpoint " << header.checkpoint_every << "\nblocks";
    for (std::int32_t block : header.checkpoint_blocks) text << ' ' << block;
  }
  return text.str() + "\n";
}

/// What version 2 adds.
void add_new_parts(const LogHeader& header, std::vector<HeaderPart>& parts) {
  const LaunchWords words = launch_words(header.plans);
  std::vector<std::int64_t> events;
  for (const Event& e : header.events)
    events.insert(events.end(), {e.step, e.layer, e.block, static_cast<std::int64_t>(e.kind), e.source, e.sequence,
                                 static_cast<std::int64_t>(e.why)});
  parts.push_back({"draft", "/steps/draft", digest_of(words.draft)});
  parts.push_back({"moves", "/steps/source", digest_of(words.source)});
  parts.push_back({"accepted", "/steps/accepted", digest_of(words.accepted)});
  parts.push_back({"events", "/events", digest_of(events)});
}

}  // namespace

StepDigests::StepDigests(const LogLayout& layout) : layers_(layout.digest[0].dims[1]) {
  starts_[0] = 2;
  for (std::size_t i = 0; i < kSections; ++i)
    starts_[i + 1] = starts_[i] + layout.digest[i].entry_bytes(1) / sizeof(std::uint64_t);
  words_.resize(starts_[kSections]);
}

void StepDigests::clear() { words_.assign(starts_[kSections], 0); }

void StepDigests::set_events(std::size_t count) { words_.resize(starts_[kSections] + 2 * count * layers_); }

std::span<std::uint64_t> StepDigests::section(Section section) {
  const std::size_t i = static_cast<std::size_t>(section);
  return std::span(words_).subspan(starts_[i], starts_[i + 1] - starts_[i]);
}

std::span<const std::uint64_t> StepDigests::section(Section section) const {
  return const_cast<StepDigests*>(this)->section(section);
}

std::span<std::uint64_t> StepDigests::layer(Section section, std::size_t slot) {
  const std::span<std::uint64_t> all = this->section(section);
  GDNSIM_CHECK(slot < layers_);
  return all.subspan(slot * (all.size() / layers_), all.size() / layers_);
}

std::span<const std::uint64_t> StepDigests::layer(Section section, std::size_t slot) const {
  return const_cast<StepDigests*>(this)->layer(section, slot);
}

Chain StepDigests::chain(const Chain& previous) const {
  std::ranges::copy(previous, words_.begin());
  return digest_of(words_);
}

Commit seal(std::int64_t step, const Chain& chain) {
  Commit record{static_cast<std::uint64_t>(step) + 1, chain[0], chain[1], 0};
  record[3] = xxh3_64(std::as_bytes(std::span(record).first(3)));
  return record;
}

bool is_sealed(const Commit& record, std::int64_t step) { return record == seal(step, {record[1], record[2]}); }

std::vector<HeaderPart> header_parts(const LogHeader& header) {
  const StepColumns columns = columns_of(header.plans);
  std::vector<HeaderPart> parts{{"model", "/model", digest_of(model_text(header))},
                                {"contract", "/contract", digest_of(contract_text(header.contracts))},
                                {"source", "/source", digest_of(header.source)},
                                {"shape", "/steps", digest_of(shape_text(header))},
                                {"index", "/steps/index", digest_of(columns.index)},
                                {"sequence", "/steps/sequence", digest_of(columns.sequence)},
                                {"rows", "/steps/rows", digest_of(columns.rows)},
                                {"path", "/steps/path", digest_of(columns.path)}};
  if (version_of(header) >= 2) add_new_parts(header, parts);
  return parts;
}

Chain header_digest(const std::vector<HeaderPart>& parts) {
  std::vector<std::uint64_t> words;
  for (const HeaderPart& part : parts) words.insert(words.end(), part.digest.begin(), part.digest.end());
  return digest_of(words);
}

std::string hex(const Chain& digest) {
  char text[33];
  std::snprintf(text, sizeof text, "%016llx%016llx", static_cast<unsigned long long>(digest[1]),
                static_cast<unsigned long long>(digest[0]));
  return text;
}

}  // namespace gdnsim
