// What makes a log's steps provable: a step's digests, the chain over them, the commit record, and the header digest that the
// chain starts from.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "gdnsim/log.hpp"
#include "log/layout.hpp"

namespace gdnsim {

using Chain = std::array<std::uint64_t, 2>;

/// One step's digests, all layers, in chain order: recurrent [L, B, HV], conv [L, B], pool [L], out [L, taps], and for each
/// event of the step before [L] and after [L].
class StepDigests {
 public:
  explicit StepDigests(const LogLayout& layout);
  void clear();
  std::span<std::uint64_t> section(Section section);
  std::span<const std::uint64_t> section(Section section) const;
  /// One layer's part of a section; `slot` is the layer's place on the L axis.
  std::span<std::uint64_t> layer(Section section, std::size_t slot);
  std::span<const std::uint64_t> layer(Section section, std::size_t slot) const;
  /// Room for this many events of the step; `clear` takes it away.
  void set_events(std::size_t count);
  std::size_t events() const { return (words_.size() - starts_[kSections]) / (2 * layers_); }
  /// One event's block digests, [L] each.
  std::span<std::uint64_t> before(std::size_t event) { return event_words(2 * event); }
  std::span<std::uint64_t> after(std::size_t event) { return event_words(2 * event + 1); }
  std::span<const std::uint64_t> before(std::size_t event) const {
    return const_cast<StepDigests*>(this)->before(event);
  }
  std::span<const std::uint64_t> after(std::size_t event) const { return const_cast<StepDigests*>(this)->after(event); }
  /// XXH3-128 over the previous chain words and these digests.
  Chain chain(const Chain& previous) const;

 private:
  std::span<std::uint64_t> event_words(std::size_t i) {
    return std::span(words_).subspan(starts_[kSections] + i * layers_, layers_);
  }
  mutable std::vector<std::uint64_t> words_;  // two for the previous chain, then the sections, then the events
  std::array<std::size_t, kSections + 1> starts_{};
  std::size_t layers_;
};

/// The 32-byte commit record: step + 1, two chain words, and the self-check over these 24 bytes.
using Commit = std::array<std::uint64_t, 4>;
Commit seal(std::int64_t step, const Chain& chain);
/// True when it is this step's record and its self-check holds.
bool is_sealed(const Commit& record, std::int64_t step);

/// Digest of one part of the header, and the object in the file that it stands for.
struct HeaderPart {
  std::string name;    // of the root attribute that stores it, after "digest_"
  std::string object;  // "/steps/index"
  Chain digest;
};
/// Model, layers, contracts, source, shape, index, sequence, rows and path. Provenance is not among them.
std::vector<HeaderPart> header_parts(const LogHeader& header);
/// Over the parts' digests, in order: what the first step's chain goes on from.
Chain header_digest(const std::vector<HeaderPart>& parts);
/// 32 hex digits, high word first.
std::string hex(const Chain& digest);

}  // namespace gdnsim
