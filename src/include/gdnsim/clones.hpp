// Function clones for newer CPUs. The bits cannot depend on which one runs: the code says where a multiply and an add fuse
// (std::fma, one instruction in a clone, a library call elsewhere), and contraction is off for the rest.
#pragma once

#include <cstdlib>  // says whether this is glibc

#if defined(__x86_64__) && defined(__linux__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
#define GDNSIM_CLONES __attribute__((target_clones("default", "arch=haswell")))
#else
#define GDNSIM_CLONES
#endif

/// Inlined into whichever clone calls it.
#define GDNSIM_INLINE inline __attribute__((always_inline))
