// Every field is named where a struct is taken apart, so that a new field does not compile until it is passed on.
#include "replay/layer_outcome.hpp"

#include <cstring>
#include <type_traits>

#include "gdnsim/error.hpp"

namespace gdnsim {
namespace {

class Packer {
 public:
  std::string bytes;

  template <class T>
  void operator()(const T& value) requires std::is_arithmetic_v<T> || std::is_enum_v<T> {
    bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void operator()(const std::string& text) { each(text); }
  template <class T>
  void operator()(const std::vector<T>& values) {
    each(values);
  }
  template <class T, std::size_t n>
  void operator()(const std::array<T, n>& values) {
    for (const T& value : values) (*this)(value);
  }
  template <class T>
  void operator()(const std::optional<T>& value) {
    (*this)(value.has_value());
    if (value) (*this)(*value);
  }
  template <class T>
  void operator()(const T& value) requires std::is_class_v<T> {
    visit(const_cast<T&>(value), *this);  // a packer only reads
  }

 private:
  template <class Values>
  void each(const Values& values) {
    (*this)(static_cast<std::uint64_t>(values.size()));
    for (const auto& value : values) (*this)(value);
  }
};

class Unpacker {
 public:
  explicit Unpacker(const std::string& bytes) : bytes_(bytes) {}
  bool done() const { return at_ == bytes_.size(); }

  template <class T>
  void operator()(T& value) requires std::is_arithmetic_v<T> || std::is_enum_v<T> {
    if (bytes_.size() - at_ < sizeof value) throw error("a rank's findings: cut short at byte ", at_);
    std::memcpy(&value, bytes_.data() + at_, sizeof value);
    at_ += sizeof value;
  }
  void operator()(std::string& text) { each(text); }
  template <class T>
  void operator()(std::vector<T>& values) {
    each(values);
  }
  template <class T, std::size_t n>
  void operator()(std::array<T, n>& values) {
    for (T& value : values) (*this)(value);
  }
  template <class T>
  void operator()(std::optional<T>& value) {
    bool there = false;
    (*this)(there);
    if (there) (*this)(value.emplace());
  }
  template <class T>
  void operator()(T& value) requires std::is_class_v<T> {
    visit(value, *this);
  }

 private:
  template <class Values>
  void each(Values& values) {
    std::uint64_t count = 0;
    (*this)(count);
    if (count > bytes_.size() - at_)
      throw error("a rank's findings: expected at most ", bytes_.size() - at_, " values, found ", count);
    values.resize(static_cast<std::size_t>(count));
    for (auto& value : values) (*this)(value);
  }
  const std::string& bytes_;
  std::size_t at_ = 0;
};

template <class Pass, class... Fields>
void pass_on(Pass& pass, Fields&... fields) {
  (pass(fields), ...);
}

template <class Pass>
void visit(TapCount& value, Pass& pass) {
  auto& [compared, differing, not_compared, max_ulp, max_abs, ulps, classes] = value;
  pass_on(pass, compared, differing, not_compared, max_ulp, max_abs, ulps, classes);
}

template <class Pass>
void visit(Cell& value, Pass& pass) {
  auto& [compared, differing, max_ulp, taps] = value;
  pass_on(pass, compared, differing, max_ulp, taps);
}

template <class Pass>
void visit(CellRow& value, Pass& pass) {
  auto& [layer, layer_id, first_step, steps_per_cell, cells, begun] = value.parts();
  pass_on(pass, layer, layer_id, first_step, steps_per_cell, cells, begun);
}

template <class Pass>
void visit(Near& value, Pass& pass) {
  auto& [from, got, want] = value;
  pass_on(pass, from, got, want);
}

template <class Pass>
void visit(Event& value, Pass& pass) {
  auto& [step, layer, block, kind, source, sequence, why] = value;
  pass_on(pass, step, layer, block, kind, source, sequence, why);
}

template <class Pass>
void visit(EventPlace& value, Pass& pass) {
  auto& [number, event, after] = value;
  pass_on(pass, number, event, after);
}

template <class Pass>
void visit(Divergence& value, Pass& pass) {
  auto& [step, layer, layer_id, tap, row, sequence, block, head, element, from_step, type, got, want, ulp, kind, inputs,
         near, event] = value;
  pass_on(pass, step, layer, layer_id, tap, row, sequence, block, head, element, from_step, type, got, want, ulp, kind,
          inputs, near, event);
}

template <class Pass>
void visit(Comparison& value, Pass& pass) {
  auto& [done, note, counts, cells, firsts, first, snapshots, digests_compared, digests_differing] = value;
  pass_on(pass, done, note, counts, cells, firsts, first, snapshots, digests_compared, digests_differing);
}

template <class Pass>
void visit(PoolSum& value, Pass& pass) {
  auto& [step, digest] = value;
  pass_on(pass, step, digest);
}

template <class Pass>
void visit(LayerOutcome& value, Pass& pass) {
  auto& [carried, local, reran, carried_pool, local_pool] = value;
  pass_on(pass, carried, local, reran, carried_pool, local_pool);
}

}  // namespace

std::string packed(const std::vector<LayerOutcome>& outcomes) {
  Packer packer;
  packer(outcomes);
  return std::move(packer.bytes);
}

std::vector<LayerOutcome> unpacked(const std::string& bytes) {
  std::vector<LayerOutcome> outcomes;
  Unpacker unpacker(bytes);
  unpacker(outcomes);
  if (!unpacker.done()) throw error("a rank's findings: more bytes than they take");
  return outcomes;
}

void share(Spread& spread, std::vector<LayerOutcome>& outcomes) {
  std::vector<LayerOutcome> mine;
  for (std::size_t i = 0; i < outcomes.size(); ++i)
    if (spread.takes(i)) mine.push_back(std::move(outcomes[i]));
  const std::vector<std::string> all = spread.exchange(packed(mine));
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    std::vector<LayerOutcome> theirs = unpacked(all[rank]);
    std::size_t i = rank;
    for (LayerOutcome& outcome : theirs) {
      if (i >= outcomes.size()) throw error("rank ", rank, ": found more pieces than it was given");
      outcomes[i] = std::move(outcome);
      i += all.size();
    }
    if (i < outcomes.size()) throw error("rank ", rank, ": expected findings of piece ", i, ", found none");
  }
}

}  // namespace gdnsim
