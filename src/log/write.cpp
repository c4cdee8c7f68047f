// Writing a log: data of each layer, then the step's digests, then its commit record. A step is complete when that record is
// written, and nothing that comes later touches it.
#include <algorithm>

#include "gdnsim/error.hpp"
#include "log/writer.hpp"

namespace gdnsim {
namespace {

std::size_t size(std::int64_t count) { return static_cast<std::size_t>(count); }

}  // namespace

/// The last complete checkpoint carries the run over everything before it: `resume_log` has verified the steps up to there.
std::int64_t FileLogWriter::start(Pool& pool) {
  GDNSIM_CHECK(!started_ && done_ == 0);
  const std::unique_ptr<LogFile> log = std::move(resumed_);
  const std::vector<std::int64_t> found = log ? log->checkpoints() : std::vector<std::int64_t>{};
  if (found.empty()) return 0;
  for (int layer : header_.layers) {
    log->read_checkpoint(found.back(), layer, pool);
    for (std::int32_t block : header_.checkpoint_blocks) pool_.touch(layer, block);
  }
  started_ = true;
  done_ = found.back() - header_.first_step + 1;
  checkpoints_ = size(std::ranges::lower_bound(layout_.checkpoints, done_) - layout_.checkpoints.begin());
  next_event_ = layout_.first_event[size(done_)];
  digests_.set_events(layout_.events_of(size(done_)));
  kept_ = size(std::ranges::lower_bound(layout_.kept, done_) - layout_.kept.begin());
  chain_ = log->chain_after(found.back());
  return found.back() + 1;
}

std::size_t FileLogWriter::slot_of(int layer) const {
  return size(std::ranges::lower_bound(header_.layers, layer) - header_.layers.begin());
}

/// The loop names an event once for each layer that is run, ascending; those of layers that are not run never come.
void FileLogWriter::event_coming(const Event& event, int layer, Pool& pool) {
  if (!kept_event(event)) return;
  if (layer == (event.layer == -1 ? header_.layers.front() : event.layer)) {
    const auto is_run = [this](const Event& e) {
      return e.layer == -1 || std::ranges::binary_search(header_.layers, e.layer);
    };
    while (next_event_ < header_.events.size() && !is_run(header_.events[next_event_])) ++next_event_;
    GDNSIM_CHECK(next_event_ < header_.events.size() && header_.events[next_event_] == event);
    ++next_event_;
  }
  const std::size_t at = next_event_ - 1 - layout_.first_event[size(done_)];
  digests_.before(at)[slot_of(layer)] = pool.digest(layer, event.block).block;
}

void FileLogWriter::event_applied(const Event& event, int layer, Pool& pool) {
  if (!kept_event(event)) {
    if (changes_contents(event.kind)) pool_.touch(layer, event.block);
    return;
  }
  const std::size_t at = next_event_ - 1 - layout_.first_event[size(done_)];
  const std::uint64_t before = digests_.before(at)[slot_of(layer)];
  std::uint64_t& after = digests_.after(at)[slot_of(layer)];
  after = changes_contents(event.kind) ? pool_.hash(pool, layer, event.block).block : before;
}

/// A run that starts in the middle was given a pool that is not all zeros.
void FileLogWriter::before(std::int64_t step, int, const StepPlan&, Pool&) {
  if (!started_ && step > 0)
    for (int layer : header_.layers) pool_.touch_all(layer);
  started_ = true;
}

/// The rows' blocks and what else changed, and at a checkpoint the whole pool. An audit rehashes every block.
bool FileLogWriter::looks_at(const ComingStep& coming, std::vector<Look>& looks) {
  if (options_.audit) return false;
  if (!logged(coming.step)) return true;
  if (coming.step == header_.first_step && !coming.next) return false;  // what earlier steps touched is not known yet
  const std::int64_t at = coming.step - header_.first_step;
  const bool written = at >= known_, kept = written && header_.state.keeps(at, header_.steps);
  for (std::int32_t block : coming.plan.block)
    if (block >= 0) add_look(looks, block, kept);
  if (coming.next)
    for (std::int32_t block : pool_.touched(coming.layer)) add_look(looks, block, false);
  if (written && std::ranges::binary_search(layout_.checkpoints, at))
    for (std::int32_t block : header_.checkpoint_blocks) add_look(looks, block, true);
  return true;
}

void FileLogWriter::after(const StepView& view) {
  if (!logged(view.step)) {
    for (std::int32_t block : view.plan.block)
      if (view.executed && block >= 0) pool_.touch(view.layer, block);
    return;
  }
  GDNSIM_CHECK(view.step == header_.first_step + done_ && layers_done_ < header_.layers.size());
  const StepPlan& declared = header_.plans[size(done_)];
  GDNSIM_CHECK(view.plan.block == declared.block && view.executed == (declared.path != Path::opaque));
  const std::size_t slot = layers_done_++;
  GDNSIM_CHECK(header_.layers[slot] == view.layer);
  write_outputs(view, slot);
  write_rows(view, slot);
  if (options_.audit) pool_.touch_all(view.layer);
  digests_.layer(Section::pool, slot)[0] = pool_.digest(view.pool, view.layer);
  if (at_checkpoint()) write_checkpoint(view.pool, view.layer, slot);
}

/// What was not computed (an opaque step, a layer without a norm) is zeros with digest 0.
void FileLogWriter::write_outputs(const StepView& view, std::size_t slot) {
  for (std::size_t i = 0; i < layout_.taps.size(); ++i) {
    const Extent& extent = layout_.out[i];
    const Bytes& words = view.outputs[layout_.taps[i]];
    const bool there = view.executed && !words.empty();
    GDNSIM_CHECK(!there || words.size() == extent.entry_bytes(2));
    if (there) digests_.layer(Section::out, slot)[i] = xxh3_64(words);
    put(extent, {size(done_), slot}, there ? std::span<const std::byte>(words) : zeros(extent.entry_bytes(2)));
  }
}

/// Digests of the rows' blocks, and their bytes when this step's state is kept. Rows without a block: zeros.
void FileLogWriter::write_rows(const StepView& view, std::size_t slot) {
  const bool kept = done_ >= known_ && header_.state.keeps(done_, header_.steps);
  const std::span<std::uint64_t> heads = digests_.layer(Section::recurrent, slot);
  const std::span<std::uint64_t> convs = digests_.layer(Section::conv, slot);
  const std::size_t HV = size(header_.model.HV);
  for (std::size_t row = 0; row < view.plan.block.size(); ++row) {
    const std::int32_t block = logged_block(view.plan, row);
    if (block < 0) {
      if (kept) write_blank_state(slot, row);
      continue;
    }
    if (kept) write_state(view, slot, row, block);
    const BlockDigest digest = view.pool.digest(view.layer, block);
    pool_.replace(view.layer, block, digest);
    std::ranges::copy(digest.heads, heads.subspan(row * HV, HV).begin());
    convs[row] = digest.conv;
  }
}

void FileLogWriter::write_state(const StepView& view, std::size_t slot, std::size_t row, std::int32_t block) {
  look_.at(view.pool, view.layer, block);
  put(layout_.state[0], {kept_, slot, row}, look_.recurrent());
  put(layout_.state[1], {kept_, slot, row}, look_.conv());
}

void FileLogWriter::write_blank_state(std::size_t slot, std::size_t row) {
  put(layout_.state[0], {kept_, slot, row}, zeros(header_.model.state_bytes()));
  put(layout_.state[1], {kept_, slot, row}, zeros(header_.model.conv_bytes()));
}

bool FileLogWriter::at_checkpoint() const {
  return checkpoints_ < layout_.checkpoints.size() && layout_.checkpoints[checkpoints_] == done_;
}

/// The pool digest, just taken, is what proves these bytes; so no other block may have changed.
void FileLogWriter::write_checkpoint(const Pool& pool, int layer, std::size_t slot) {
  if (pool_.digest_of_only(layer, header_.checkpoint_blocks) != digests_.layer(Section::pool, slot)[0]) {
    failure_ = path_ + ": step " + std::to_string(header_.first_step + done_) + ", layer " + std::to_string(layer) +
               ": a block that no row or event named has changed: a checkpoint cannot hold that";
    throw Error(failure_);
  }
  if (done_ < known_) return;
  for (std::size_t i = 0; i < header_.checkpoint_blocks.size(); ++i) {
    look_.at(pool, layer, header_.checkpoint_blocks[i]);
    put(layout_.checkpoint[0], {checkpoints_, slot, i}, look_.recurrent());
    put(layout_.checkpoint[1], {checkpoints_, slot, i}, look_.conv());
  }
}

void FileLogWriter::step_done(std::int64_t step) {
  if (!logged(step)) return;
  GDNSIM_CHECK(layers_done_ == header_.layers.size() && step == header_.first_step + done_);
  chain_ = digests_.chain(chain_);
  const Commit record = seal(step, chain_);
  if (done_ < known_)
    compare_commit(record);
  else
    write_commit(record);
  if (header_.state.keeps(done_, header_.steps)) ++kept_;
  if (at_checkpoint()) ++checkpoints_;
  ++done_;
  layers_done_ = 0;
  digests_.clear();
  if (done_ < header_.steps) digests_.set_events(layout_.events_of(size(done_)));
}

void FileLogWriter::compare_commit(const Commit& record) {
  Commit stored;
  if (const int failed = file_.read_at(layout_.commit.at({size(done_)}), std::as_writable_bytes(std::span(stored))))
    fail(layout_.commit.path() + ": cannot be read", failed);
  if (stored == record) return;
  failure_ = path_ + ": step " + std::to_string(header_.first_step + done_) +
             ": recomputed, it gives other digests than the log holds: it cannot be resumed";
  throw Error(failure_);
}

void FileLogWriter::write_commit(const Commit& record) {
  for (std::size_t i = 0; i < kSections; ++i)
    put(layout_.digest[i], {size(done_)}, std::as_bytes(digests_.section(static_cast<Section>(i))));
  const std::size_t first = layout_.first_event[size(done_)];
  for (std::size_t event = 0; event < digests_.events(); ++event) {
    put(layout_.events[0], {first + event}, std::as_bytes(digests_.before(event)));
    put(layout_.events[1], {first + event}, std::as_bytes(digests_.after(event)));
  }
  const bool due = options_.sync > 0 && ((done_ + 1) % options_.sync == 0 || done_ + 1 == header_.steps);
  if (due) sync("data before the commit record");
  put(layout_.commit, {size(done_)}, std::as_bytes(std::span(record)));
  if (due) sync("commit record");
}

void FileLogWriter::close() {
  if (!failure_.empty()) throw Error(failure_);
  if (options_.sync > 0 && file_.is_open()) sync("file");
  if (const int failed = file_.close()) fail("cannot be closed", failed);
}

void FileLogWriter::sync(const char* what) {
  if (const int failed = file_.sync()) fail(std::string("cannot sync the ") + what, failed);
}

void FileLogWriter::put(const Extent& extent, std::initializer_list<std::uint64_t> index,
                        std::span<const std::byte> bytes) {
  if (!failure_.empty()) throw Error(failure_);
  if (done_ < known_) return;  // there already
  if (const int failed = file_.write_at(extent.at(index), bytes)) fail(extent.path() + ": cannot be written", failed);
  bytes_written_ += bytes.size();
}

std::span<const std::byte> FileLogWriter::zeros(std::size_t bytes) {
  if (zeros_.size() < bytes) zeros_.resize(bytes);
  return std::span<const std::byte>(zeros_).first(bytes);
}

void FileLogWriter::fail(const std::string& what, int code) {
  const std::string last = committed() == 0
                               ? "no step is complete"
                               : "the last complete step is " + std::to_string(header_.first_step + committed() - 1);
  failure_ = path_ + ": " + what + ": " + errno_text(code) + "; " + last;
  throw Error(failure_);
}

}  // namespace gdnsim
