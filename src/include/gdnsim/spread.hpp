// Work spread over processes that were started together: which of them one is, and how all hear what each has found.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace gdnsim {

class Spread {
 public:
  virtual ~Spread() = default;
  virtual int rank() const = 0;  // 0 .. ranks() - 1
  virtual int ranks() const = 0;
  /// Each rank gives its own text and gets those of all, in the order of ranks. All ranks call it equally often.
  virtual std::vector<std::string> exchange(const std::string& mine) = 0;

  /// Pieces of work go round; without a spread all are one's own.
  bool takes(std::size_t piece) const {
    return piece % static_cast<std::size_t>(ranks()) == static_cast<std::size_t>(rank());
  }
};

}  // namespace gdnsim
