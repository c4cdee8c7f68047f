// The fuzz target, in process: what the child that tries untrusted files first would catch is seen here as a crash.
//
//   fuzz_reader [libFuzzer options] CORPUS...
//
// The same program takes traces and logs; the corpus says which reader is met.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>

#include <fcntl.h>
#include <unistd.h>

#include "file/trial.hpp"
#include "read_all.hpp"

namespace gdnsim {

/// In place of the library's: no child, so the crash happens here.
void try_in_child(const std::string&, const std::function<void()>& open) { open(); }

}  // namespace gdnsim

namespace {

/// One file that is rewritten for each input; in memory where the system offers that. It has no name: a crash leaves nothing.
class Input {
 public:
  Input() {
    std::error_code none;
    const std::filesystem::path memory = "/dev/shm";
    std::string name =
        ((std::filesystem::is_directory(memory, none) ? memory : std::filesystem::temp_directory_path()) /
         "gdnsim-fuzz-XXXXXX")
            .string();
    descriptor_ = ::mkostemp(name.data(), O_CLOEXEC);
    if (descriptor_ < 0 || ::unlink(name.c_str()) != 0) std::perror(name.c_str()), std::abort();
    path_ = "/proc/self/fd/" + std::to_string(descriptor_);
  }
  const std::string& fill(const std::uint8_t* data, std::size_t size) {
    if (::ftruncate(descriptor_, 0) != 0 || ::pwrite(descriptor_, data, size, 0) != static_cast<ssize_t>(size))
      std::perror(path_.c_str()), std::abort();
    return path_;
  }

 private:
  std::string path_;
  int descriptor_ = -1;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static Input input;
  const gdnsim::test::Reading reading = gdnsim::test::read_all(input.fill(data, size));
  if (reading.untidy_line) std::fprintf(stderr, "not one line: %s\n", reading.text.c_str()), std::abort();
  return 0;
}
