// Writing a log: data of each layer, then the step's digests, then its commit record. A step is complete when that record is
// written, and nothing that comes later touches it.
#include <algorithm>

#include "gdnsim/error.hpp"
#include "log_writer.hpp"

namespace gdnsim {
namespace {

std::size_t size(std::int64_t count) { return static_cast<std::size_t>(count); }

}  // namespace

/// A run that starts in the middle was given a pool that is not all zeros.
void FileLogWriter::before(std::int64_t step, int, const StepPlan&, Pool&) {
  if (!started_ && step > 0)
    for (int layer : header_.layers) pool_.touch_all(layer);
  started_ = true;
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
}

/// What was not computed (an opaque step, a layer without a norm) is zeros with digest 0.
void FileLogWriter::write_outputs(const StepView& view, std::size_t slot) {
  for (std::size_t i = 0; i < layout_.taps.size(); ++i) {
    const Extent& extent = layout_.out[i];
    const Bytes& words = view.outputs[layout_.taps[i]];
    const bool there = view.executed && !words.empty();
    GDNSIM_CHECK(!there || words.size() == extent.entry_bytes(2));
    put(extent, {size(done_), slot}, there ? std::span<const std::byte>(words) : zeros(extent.entry_bytes(2)));
    if (there) digests_.layer(Section::out, slot)[i] = xxh3_64(words);
  }
}

/// Digests of the rows' blocks, and their bytes when this step's state is kept. Rows without a block: zeros.
void FileLogWriter::write_rows(const StepView& view, std::size_t slot) {
  const bool kept = header_.state.keeps(done_, header_.steps);
  const std::span<std::uint64_t> heads = digests_.layer(Section::recurrent, slot);
  const std::span<std::uint64_t> convs = digests_.layer(Section::conv, slot);
  const std::size_t HV = size(header_.model.HV);
  for (std::size_t row = 0; row < view.plan.block.size(); ++row) {
    const std::int32_t block = logged_block(view.plan, row);
    if (block >= 0) {
      const BlockDigest digest = pool_.hash(view.pool, view.layer, block, recurrent_, conv_);
      std::ranges::copy(digest.heads, heads.subspan(row * HV, HV).begin());
      convs[row] = digest.conv;
    } else {
      recurrent_.assign(kept ? header_.model.state_bytes() : 0, std::byte{0});
      conv_.assign(kept ? header_.model.conv_bytes() : 0, std::byte{0});
    }
    if (kept) write_state(slot, row);
  }
}

void FileLogWriter::write_state(std::size_t slot, std::size_t row) {
  put(layout_.state[0], {kept_, slot, row}, recurrent_);
  put(layout_.state[1], {kept_, slot, row}, conv_);
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
  ++done_;
  layers_done_ = 0;
  digests_.clear();
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
