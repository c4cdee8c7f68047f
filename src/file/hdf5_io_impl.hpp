// What the hdf5_io*.cpp files share: the library's header, its error text, and the checks around each call.
#pragma once

#include <hdf5.h>

#include <string>

#include "file/hdf5_io.hpp"
#include "gdnsim/error.hpp"

namespace gdnsim::h5 {

static_assert(sizeof(hid_t) == sizeof(std::int64_t));

/// Starts the library for this thread: no printing, no plugins.
void start_library();

/// The innermost line of the library's error stack as " (HDF5: ...)", or nothing; clears the stack.
std::string library_reason();

/// Throws "where: what (HDF5: reason)" unless `ok`.
template <class Status>
Status require(Status status, const std::string& where, std::string_view what) {
  if (status < 0) throw error(where, ": ", what, library_reason());
  return status;
}

/// An owned identifier; throws like `require` when the call that made it failed.
inline Handle owned(hid_t id, const std::string& where, std::string_view what) {
  return Handle(require(id, where, what));
}

/// A new memory and file type for `type`.
Handle make_type(Type type);
/// What a file's type is, in words: "bf16", "big-endian f32", "uint16", "string", ...
std::string describe(hid_t type);
/// True when a file's type is exactly this one, padding aside.
bool is_type(hid_t found, Type type);
/// The text of a variable-length string attribute, at most Group::kMaxText bytes. HDF5 trusts the lengths it finds there: see trial.hpp.
std::string vlen_text(hid_t attribute, hid_t type, const std::string& where);

}  // namespace gdnsim::h5
