// Reading a log: the skeleton once, then plain preads at the datasets' offsets.
#include <algorithm>

#include "file/trial.hpp"
#include "gdnsim/error.hpp"
#include "log/checkpoint.hpp"
#include "log/file.hpp"

namespace gdnsim {

LogFile::LogFile(const std::string& path) : path_(path) {
  LogSkeleton skeleton = read_skeleton(path);
  file_ = RawFile(path, RawFile::Mode::read, path);
  header_ = std::move(skeleton.header);
  layout_ = std::move(skeleton.layout);
  if (file_.size() != skeleton.file_bytes) throw error(path, ": the file changed while it was opened");
  for (const Extent* extent : layout_.extents())
    if (extent->offset > file_.size() || extent->bytes() > file_.size() - extent->offset)
      throw error(path, ": ", extent->path(), ": expected ", extent->bytes(), " bytes at offset ", extent->offset,
                  ", found the end of the file at ", file_.size());
  count_complete_steps();
  find_absent_taps();
  list_snapshots();
}

/// Complete steps are those whose record checks and whose digests continue the chain, from the first on without a gap.
void LogFile::count_complete_steps() {
  StepDigests digests(layout_);
  chain_ = header_digest(header_parts(header_));
  for (complete_ = 0; complete_ < header_.steps; ++complete_) {
    const std::size_t t = static_cast<std::size_t>(complete_);
    const Commit record = read_commit(t);
    if (!is_sealed(record, header_.first_step + complete_)) return;
    read_digests(t, digests);
    const Chain next = digests.chain(chain_);
    if (next != Chain{record[1], record[2]}) return;
    chain_ = next;
  }
}

/// A layer without a norm has no rstd and norm_out: digest 0 in every step. One executed step tells.
void LogFile::find_absent_taps() {
  taps_.assign(header_.layers.size(), header_.taps);
  StepDigests digests(layout_);
  for (std::size_t t = 0; t < static_cast<std::size_t>(complete_); ++t) {
    if (header_.plans[t].path == Path::opaque) continue;
    read_digests(t, digests);
    for (std::size_t slot = 0; slot < taps_.size(); ++slot)
      for (std::size_t i = 0; i < layout_.taps.size(); ++i)
        if (digests.layer(Section::out, slot)[i] == 0) taps_[slot].remove(layout_.taps[i]);
    return;
  }
}

void LogFile::list_snapshots() {
  const std::size_t B = static_cast<std::size_t>(header_.rows), L = header_.layers.size();
  for (std::size_t s = 0; s < layout_.kept.size() && layout_.kept[s] < complete_; ++s)
    for (std::size_t slot = 0; slot < L; ++slot)
      for (std::size_t row = 0; row < B; ++row) {
        const std::int32_t block = layout_.kept_blocks[s * B + row];
        const std::int64_t at = static_cast<std::int64_t>((s * L + slot) * B + row);
        if (block >= 0) snapshots_.push_back({header_.first_step + layout_.kept[s], header_.layers[slot], block, at});
      }
}

std::size_t LogFile::complete_step(std::int64_t step) const {
  const std::int64_t t = step - header_.first_step;
  if (t >= 0 && t < complete_) return static_cast<std::size_t>(t);
  throw error(path_, ": step ", step, ": expected one of the ", complete_, " complete steps from ", header_.first_step,
              " on");
}

std::size_t LogFile::slot_of(int layer) const {
  const auto found = std::ranges::lower_bound(header_.layers, layer);
  if (found == header_.layers.end() || *found != layer)
    throw error(path_, ": layer ", layer, ": the log does not have it");
  return static_cast<std::size_t>(found - header_.layers.begin());
}

void LogFile::read(const Extent& extent, std::initializer_list<std::uint64_t> index, std::span<std::byte> out) const {
  if (const int failed = file_.read_at(extent.at(index), out))
    throw error(path_, ": ", extent.path(), "[", *index.begin(), "]: cannot be read: ", errno_text(failed));
}

Commit LogFile::read_commit(std::size_t t) const {
  Commit record;
  read(layout_.commit, {t}, std::as_writable_bytes(std::span(record)));
  return record;
}

void LogFile::read_digests(std::size_t t, StepDigests& digests) const {
  for (std::size_t i = 0; i < kSections; ++i)
    read(layout_.digest[i], {t}, std::as_writable_bytes(digests.section(static_cast<Section>(i))));
  digests.set_events(layout_.events_of(t));
  for (std::size_t event = 0; event < digests.events(); ++event) {
    read(layout_.events[0], {layout_.first_event[t] + event}, std::as_writable_bytes(digests.before(event)));
    read(layout_.events[1], {layout_.first_event[t] + event}, std::as_writable_bytes(digests.after(event)));
  }
}

StepPlan LogFile::plan(std::int64_t step) const {
  const std::int64_t t = step - header_.first_step;
  if (t < 0 || t >= header_.steps) throw error(path_, ": step ", step, ": the log does not have it");
  return header_.plans[static_cast<std::size_t>(t)];
}

TapSet LogFile::taps(int layer) const { return taps_[slot_of(layer)]; }

const Extent& LogFile::extent_of(Tap tap) const {
  const auto found = std::ranges::find(layout_.taps, tap);
  if (found == layout_.taps.end()) throw error(path_, ": /out/", name_of(tap), ": the log does not have it");
  return layout_.out[static_cast<std::size_t>(found - layout_.taps.begin())];
}

void LogFile::read_tap(Tap tap, std::int64_t step, int layer, Bytes& out) {
  const std::size_t t = complete_step(step), slot = slot_of(layer);
  const Extent& extent = extent_of(tap);
  out.resize(extent.entry_bytes(2));
  read(extent, {t, slot}, out);
}

void LogFile::read_tap_rows(Tap tap, std::int64_t step, int layer, std::span<const int> rows, Bytes& out) {
  const std::size_t t = complete_step(step), slot = slot_of(layer);
  const Extent& extent = extent_of(tap);
  const std::size_t bytes = extent.entry_bytes(3);
  out.resize(extent.entry_bytes(2));
  for (int row : rows) {
    const std::size_t at = static_cast<std::size_t>(row);
    read(extent, {t, slot, at}, std::span(out).subspan(at * bytes, bytes));
  }
}

void LogFile::read_snapshot(const Snapshot& snapshot, Bytes& recurrent, Bytes& conv) {
  const std::uint64_t B = static_cast<std::uint64_t>(header_.rows), L = header_.layers.size();
  GDNSIM_CHECK(layout_.state.size() == 2 && snapshot.at >= 0);
  const std::uint64_t at = static_cast<std::uint64_t>(snapshot.at), s = at / (L * B), slot = at / B % L, row = at % B;
  recurrent.resize(header_.model.state_bytes());
  conv.resize(header_.model.conv_bytes());
  read(layout_.state[0], {s, slot, row}, recurrent);
  read(layout_.state[1], {s, slot, row}, conv);
}

std::vector<std::int64_t> LogFile::checkpoints() const {
  std::vector<std::int64_t> steps;
  for (std::int64_t t : layout_.checkpoints)
    if (t < complete_ && header_.plans[static_cast<std::size_t>(t)].last_draft) steps.push_back(header_.first_step + t);
  return steps;
}

void LogFile::read_checkpoint(std::int64_t step, int layer, Pool& pool) {
  const std::size_t t = complete_step(step), slot = slot_of(layer);
  const auto found = std::ranges::lower_bound(layout_.checkpoints, static_cast<std::int64_t>(t));
  if (found == layout_.checkpoints.end() || *found != static_cast<std::int64_t>(t))
    throw error(path_, ": /checkpoint: step ", step, ": the log has none of it");
  const std::size_t c = static_cast<std::size_t>(found - layout_.checkpoints.begin());
  std::uint64_t digest = digest_of_unlisted(header_);
  Bytes recurrent(header_.model.state_bytes()), conv(header_.model.conv_bytes());
  for (std::size_t i = 0; i < header_.checkpoint_blocks.size(); ++i) {
    const std::int32_t block = header_.checkpoint_blocks[i];
    read(layout_.checkpoint[0], {c, slot, i}, recurrent);
    read(layout_.checkpoint[1], {c, slot, i}, conv);
    pool.write(layer, block, recurrent, conv);
    digest += pool_share(digest_block(header_.model, recurrent, conv).block, block);
  }
  if (digest != digest_pool(step, layer))
    throw error(path_, ": /checkpoint: step ", step, ", layer ", layer, ": the bytes do not match the pool digest");
}

Chain LogFile::chain_after(std::int64_t step) const {
  const Commit record = read_commit(complete_step(step));
  return {record[1], record[2]};
}

std::vector<std::uint64_t> LogFile::layer_digests(Section section, std::int64_t step, int layer) {
  const std::size_t t = complete_step(step), slot = slot_of(layer);
  const Extent& extent = layout_.digest[static_cast<std::size_t>(section)];
  std::vector<std::uint64_t> words(extent.entry_bytes(2) / sizeof(std::uint64_t));
  read(extent, {t, slot}, std::as_writable_bytes(std::span(words)));
  return words;
}

std::vector<std::uint64_t> LogFile::digest_recurrent(std::int64_t step, int layer) {
  return layer_digests(Section::recurrent, step, layer);
}
std::vector<std::uint64_t> LogFile::digest_conv(std::int64_t step, int layer) {
  return layer_digests(Section::conv, step, layer);
}
std::uint64_t LogFile::digest_pool(std::int64_t step, int layer) {
  return layer_digests(Section::pool, step, layer)[0];
}
std::vector<std::uint64_t> LogFile::digest_out(std::int64_t step, int layer) {
  return layer_digests(Section::out, step, layer);
}

EventDigests LogFile::digest_event(std::size_t event, int layer) {
  if (event >= header_.events.size()) throw error(path_, ": /events[", event, "]: the log does not have it");
  static_cast<void>(complete_step(header_.events[event].step));
  EventDigests digests;
  read(layout_.events[0], {event, slot_of(layer)}, std::as_writable_bytes(std::span(&digests.before, 1)));
  read(layout_.events[1], {event, slot_of(layer)}, std::as_writable_bytes(std::span(&digests.after, 1)));
  return digests;
}

std::unique_ptr<Log> open_log(const std::string& path) {
  try_in_child(path, [&] { read_skeleton(path); });
  return std::make_unique<LogFile>(path);
}

}  // namespace gdnsim
