// The writer of a log file: shared by what makes one (log/create.cpp) and what it does at each step (log/write.cpp).
#pragma once

#include <algorithm>
#include <initializer_list>
#include <span>
#include <string>

#include "core/pool_digest.hpp"
#include "file/raw_file.hpp"
#include "gdnsim/log.hpp"
#include "log/chain.hpp"
#include "log/file.hpp"
#include "log/layout.hpp"

namespace gdnsim {

class FileLogWriter final : public LogWriter {
 public:
  /// `resumed` is what the file holds already: its complete steps are recomputed and compared with their records, not written.
  FileLogWriter(std::string path, const LogHeader& header, const LogOptions& options, LogLayout layout, RawFile file,
                std::unique_ptr<LogFile> resumed)
      : path_(std::move(path)),
        header_(header),
        options_(options),
        layout_(std::move(layout)),
        file_(std::move(file)),
        pool_(header.model, header.layers),
        digests_(layout_),
        chain_(header_digest(header_parts(header))),
        resumed_(std::move(resumed)),
        known_(resumed_ ? resumed_->steps() : 0) {
    digests_.set_events(layout_.events_of(0));
  }

  void event_coming(const Event& event, int layer, Pool& pool) override;
  void event_applied(const Event& event, int layer, Pool& pool) override;
  bool looks_at(const ComingStep& coming, std::vector<Look>& looks) override;
  void before(std::int64_t step, int layer, const StepPlan& plan, Pool& pool) override;
  void after(const StepView& view) override;
  void step_done(std::int64_t step) override;

  std::int64_t committed() const override { return std::max(done_, known_); }
  std::uint64_t bytes_written() const override { return bytes_written_; }
  std::int64_t start(Pool& pool) override;
  std::array<std::uint64_t, 2> chain() const override { return chain_; }
  void close() override;

 private:
  bool logged(std::int64_t step) const {
    return step >= header_.first_step && step < header_.first_step + header_.steps;
  }
  void write_outputs(const StepView& view, std::size_t slot);
  void write_rows(const StepView& view, std::size_t slot);
  void write_state(const StepView& view, std::size_t slot, std::size_t row, std::int32_t block);
  void write_blank_state(std::size_t slot, std::size_t row);
  void write_checkpoint(const Pool& pool, int layer, std::size_t slot);
  bool at_checkpoint() const;
  bool kept_event(const Event& event) const { return !header_.events.empty() && logged(event.step); }
  std::size_t slot_of(int layer) const;
  void compare_commit(const Commit& record);
  void write_commit(const Commit& record);
  void sync(const char* what);
  void put(const Extent& extent, std::initializer_list<std::uint64_t> index, std::span<const std::byte> bytes);
  std::span<const std::byte> zeros(std::size_t bytes);
  [[noreturn]] void fail(const std::string& what, int code);

  const std::string path_;
  const LogHeader header_;
  const LogOptions options_;
  const LogLayout layout_;
  RawFile file_;
  PoolDigest pool_;
  StepDigests digests_;               // of the step under way
  Chain chain_;                       // of the last step done
  std::unique_ptr<LogFile> resumed_;  // until the first step
  const std::int64_t known_;
  bool started_ = false;
  std::int64_t done_ = 0;        // logged steps done, written or compared
  std::size_t layers_done_ = 0;  // of the step under way
  std::size_t kept_ = 0;         // snapshots among the steps done
  std::size_t checkpoints_ = 0;  // among the steps done
  std::size_t next_event_ = 0;   // of header_.events
  std::uint64_t bytes_written_ = 0;
  Bytes zeros_;
  BlockLook look_;
  std::string failure_;
};

}  // namespace gdnsim
