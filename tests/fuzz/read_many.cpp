// Reads the files that are named on stdin, one a line, as the program would; one line of answer each. A batch: starting a
// process for each of thousands of files costs more than reading them.
//
//   read_many < NAMES        RECEPTION<tab>COMPLETE STEPS<tab>TEXT
//
// What a damaged file may take is limited here: the address space, to what opening a file of its size may need. A crash ends the
// batch, and whoever reads the answers sees on which file.
#include <cstdint>
#include <fstream>
#include <iostream>
#include <string>

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "read_all.hpp"

namespace {

constexpr std::uint64_t kSpareBytes = std::uint64_t{256} << 20, kBytesPerFileByte = 4;

std::uint64_t pages_now() {
  std::uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages;
}

void limit_memory(const std::string& path) {
  static const std::uint64_t start = pages_now() * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return;
  const std::uint64_t most = start + kSpareBytes + kBytesPerFileByte * static_cast<std::uint64_t>(status.st_size);
  const struct rlimit space { most, RLIM_INFINITY };
  ::setrlimit(RLIMIT_AS, &space);
}

const char* name_of(gdnsim::test::Reception reception) {
  static constexpr const char* names[] = {"refused", "faulty", "incomplete", "whole"};
  return names[static_cast<int>(reception)];
}

}  // namespace

int main() {
  for (std::string path; std::getline(std::cin, path);) {
    limit_memory(path);
    const gdnsim::test::Reading reading = gdnsim::test::read_all(path);
    std::cout << (reading.untidy_line ? "untidy" : name_of(reading.reception)) << '\t' << reading.steps << '\t'
              << reading.text.substr(0, reading.text.find('\n')) << std::endl;
  }
}
