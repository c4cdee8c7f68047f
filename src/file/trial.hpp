// Trying something with an untrusted file in a child process first. HDF5 1.10 can overrun its buffers, loop or ask for gigabytes
// on damaged metadata (a few of 10,000 random mutations do it); then the child ends, not the program.
#pragma once

#include <functional>
#include <string>

namespace gdnsim {

/// Runs `open` in a child whose processor time and memory are limited in proportion to the size of the file `path`. Returns
/// when it came through; throws the Error it threw, or one that says that the file is damaged. What `open` opened is gone:
/// do it again. Not while another thread is inside HDF5 (its lock would stay taken in the child).
void try_in_child(const std::string& path, const std::function<void()>& open);

}  // namespace gdnsim
