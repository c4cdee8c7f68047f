// Verifying a log: everything is recomputed from the bytes. The chain says whether a step's digests are the ones that were
// written; so when data and digest disagree it also says which of the two was changed.
//
// Not covered: alignment gaps, /provenance, and data of steps without a commit record. HDF5's own checksums cover its metadata
// and the attributes; opening compares /model, /contract, /source and /steps with the header's digests.
#include <algorithm>

#include "gdnsim/error.hpp"
#include "log/file.hpp"

namespace gdnsim {
namespace {

bool all_zero(std::span<const std::byte> bytes) {
  return std::ranges::all_of(bytes, [](std::byte byte) { return byte == std::byte{0}; });
}

/// True for the first bytes of `whole`, none or some, and zeros behind them.
bool is_begun(const Commit& record, const Commit& whole) {
  const auto found = std::as_bytes(std::span(record)), wanted = std::as_bytes(std::span(whole));
  const auto differ = std::ranges::mismatch(found, wanted);
  return all_zero(found.subspan(static_cast<std::size_t>(differ.in1 - found.begin())));
}

std::string place(int layer, std::size_t row) {
  return "layer " + std::to_string(layer) + ", row " + std::to_string(row);
}

const char* const kAltered = ": the bytes do not match their digest";
const char* const kAlteredDigest = ": the digest does not match the bytes, nor the chain";

}  // namespace

LogFault LogFile::fault(const Extent& extent, std::size_t t, const std::string& what) const {
  return {extent.path(), header_.first_step + static_cast<std::int64_t>(t), what};
}

LogFault LogFile::verify(const Slice& slice) {
  const bool all_steps = slice.first_step < 0 && slice.last_step < 0;
  const Slice part = slice.whole() ? whole_of(*this) : resolved(slice, whole_of(*this), path_);
  std::vector<std::size_t> slots;
  for (int layer : part.layers) slots.push_back(slot_of(layer));
  StepDigests digests(layout_);
  Proofs proofs{{header_, layout_}, {header_, layout_}};
  Chain chain = header_digest(header_parts(header_));
  for (std::int64_t step = header_.first_step; step < part.last_step; ++step) {
    verified_slots_ = step < part.first_step ? std::vector<std::size_t>{} : slots;
    const LogFault found = verify_step(static_cast<std::size_t>(step - header_.first_step), chain, digests, proofs);
    if (!found.dataset.empty()) return found;
    chain = digests.chain(chain);
  }
  verified_slots_ = slots;
  return all_steps && complete_ < header_.steps ? verify_rest(chain, digests, proofs) : LogFault{};
}

LogFault LogFile::verify_step(std::size_t t, const Chain& previous, StepDigests& digests, Proofs& proofs) const {
  const Commit record = read_commit(t);
  if (!is_sealed(record, header_.first_step + static_cast<std::int64_t>(t)))
    return fault(layout_.commit, t, "the record does not match its self-check");
  read_digests(t, digests);
  const bool trusted = digests.chain(previous) == Chain{record[1], record[2]};
  if (LogFault found = verify_outputs(t, digests, trusted); !found.dataset.empty()) return found;
  if (LogFault found = verify_rows(t, digests, trusted); !found.dataset.empty()) return found;
  if (LogFault found = verify_checkpoint(t, digests, trusted, proofs); !found.dataset.empty()) return found;
  const std::optional<EventProof::Fault> event = proofs.events.check(t, digests);
  if (trusted) return {};
  if (event) return fault(layout_.events[event->after], t, event->where + ": the digest does not continue the block's");
  if (std::ranges::binary_search(layout_.kept, static_cast<std::int64_t>(t)))  // the others were recomputed
    return fault(layout_.digest[static_cast<std::size_t>(Section::pool)], t, "the digests do not continue the chain");
  return {"/digest", header_.first_step + static_cast<std::int64_t>(t),
          "the recurrent, conv or pool digests do not continue the chain (no state was kept to tell which)"};
}

LogFault LogFile::verify_outputs(std::size_t t, const StepDigests& digests, bool trusted) const {
  Bytes words;
  for (std::size_t slot : verified_slots_) {
    const std::span<const std::uint64_t> expected = digests.layer(Section::out, slot);
    for (std::size_t i = 0; i < layout_.taps.size(); ++i) {
      words.resize(layout_.out[i].entry_bytes(2));
      read(layout_.out[i], {t, slot}, words);
      // Digest 0: nothing was computed, so nothing was stored.
      if (expected[i] == 0 ? all_zero(words) : xxh3_64(words) == expected[i]) continue;
      const std::string where = "layer " + std::to_string(header_.layers[slot]);
      if (trusted) return fault(layout_.out[i], t, where + kAltered);
      const Extent& digest = layout_.digest[static_cast<std::size_t>(Section::out)];
      return fault(digest, t, where + ", tap " + std::string(name_of(layout_.taps[i])) + kAlteredDigest);
    }
  }
  return {};
}

LogFault LogFile::verify_rows(std::size_t t, const StepDigests& digests, bool trusted) const {
  for (std::size_t slot : verified_slots_)
    for (std::size_t row = 0; row < static_cast<std::size_t>(header_.rows); ++row) {
      const LogFault found = verify_row_digests(t, slot, row, digests, trusted);
      if (!found.dataset.empty()) return found;
    }
  return {};
}

/// One row: its digests are 0 exactly when it has no block, and those of a kept state are recomputed.
LogFault LogFile::verify_row_digests(std::size_t t, std::size_t slot, std::size_t row, const StepDigests& digests,
                                     bool trusted) const {
  const std::size_t HV = static_cast<std::size_t>(header_.model.HV);
  const std::span<const std::uint64_t> heads = digests.layer(Section::recurrent, slot).subspan(row * HV, HV);
  const std::uint64_t conv_digest = digests.layer(Section::conv, slot)[row];
  const bool active = logged_block(header_.plans[t], row) >= 0;
  const auto kept = std::ranges::lower_bound(layout_.kept, static_cast<std::int64_t>(t));
  const bool stored = kept != layout_.kept.end() && *kept == static_cast<std::int64_t>(t);
  if (active && !stored) return {};  // only the chain speaks for these

  BlockDigest expected{std::vector<std::uint64_t>(HV), 0, 0};
  Bytes recurrent, conv;
  if (stored) {
    const std::size_t s = static_cast<std::size_t>(kept - layout_.kept.begin());
    recurrent.resize(header_.model.state_bytes());
    conv.resize(header_.model.conv_bytes());
    read(layout_.state[0], {s, slot, row}, recurrent);
    read(layout_.state[1], {s, slot, row}, conv);
    if (active) expected = digest_block(header_.model, recurrent, conv);
  }
  const std::string where = place(header_.layers[slot], row);
  const auto disagree = [&](Section section, const std::string& detail) {
    if (trusted && stored) return fault(layout_.state[section == Section::conv], t, where + detail + kAltered);
    return fault(layout_.digest[static_cast<std::size_t>(section)], t, where + detail + kAlteredDigest);
  };
  for (std::size_t hv = 0; hv < HV; ++hv)
    if (heads[hv] != expected.heads[hv]) return disagree(Section::recurrent, ", head " + std::to_string(hv));
  if (conv_digest != expected.conv) return disagree(Section::conv, "");
  if (!active && !all_zero(recurrent))
    return fault(layout_.state[0], t, where + ": expected zeros where no state is kept");
  if (!active && !all_zero(conv)) return fault(layout_.state[1], t, where + ": expected zeros where no state is kept");
  return {};
}

/// A checkpoint's bytes have to give the step's pool digest.
LogFault LogFile::verify_checkpoint(std::size_t t, const StepDigests& digests, bool trusted, Proofs& proofs) const {
  if (layout_.checkpoint.empty()) return {};
  proofs.checkpoints.note_rows(t, digests);
  const auto kept = std::ranges::lower_bound(layout_.checkpoints, static_cast<std::int64_t>(t));
  if (kept == layout_.checkpoints.end() || *kept != static_cast<std::int64_t>(t)) return {};
  const std::size_t c = static_cast<std::size_t>(kept - layout_.checkpoints.begin());
  for (std::size_t slot : verified_slots_) {
    const LogFault found = verify_checkpoint_layer(t, c, slot, digests, trusted, proofs);
    if (!found.dataset.empty()) return found;
  }
  return {};
}

LogFault LogFile::verify_checkpoint_layer(std::size_t t, std::size_t c, std::size_t slot, const StepDigests& digests,
                                          bool trusted, Proofs& proofs) const {
  std::vector<BlockDigest> blocks;
  Bytes recurrent(header_.model.state_bytes()), conv(header_.model.conv_bytes());
  for (std::size_t i = 0; i < header_.checkpoint_blocks.size(); ++i) {
    read(layout_.checkpoint[0], {c, slot, i}, recurrent);
    read(layout_.checkpoint[1], {c, slot, i}, conv);
    blocks.push_back(digest_block(header_.model, recurrent, conv));
  }
  const auto culprit = proofs.checkpoints.check(slot, blocks, digests.layer(Section::pool, slot)[0]);
  if (!culprit) return {};
  const std::string where = "layer " + std::to_string(header_.layers[slot]);
  if (trusted) return fault(layout_.checkpoint[culprit->conv], t, where + ", " + culprit->where + kAltered);
  return fault(layout_.digest[static_cast<std::size_t>(Section::pool)], t, where + kAlteredDigest);
}

/// Behind the complete steps nothing may look like a record. An interrupted run leaves a blank there, or the first bytes of
/// the record that its digests ask for.
LogFault LogFile::verify_rest(const Chain& last, StepDigests& digests, Proofs& proofs) const {
  const std::size_t first = static_cast<std::size_t>(complete_);
  const std::int64_t step = header_.first_step + complete_;
  const Commit record = read_commit(first);
  if (is_sealed(record, step)) return verify_step(first, last, digests, proofs);
  read_digests(first, digests);
  if (!is_begun(record, seal(step, digests.chain(last))))
    return fault(layout_.commit, first, "the record does not match its self-check");
  for (std::size_t t = first + 1; t < static_cast<std::size_t>(header_.steps); ++t)
    if (read_commit(t) != Commit{})
      return fault(layout_.commit, first,
                   "the record is missing, though step " +
                       std::to_string(header_.first_step + static_cast<std::int64_t>(t)) + " has one");
  return {};
}

}  // namespace gdnsim
