// The readers need no backend; this stands in for golden and cuda, so that the fuzzer builds the core library alone.
#include <gdnsim/backend.hpp>
#include <gdnsim/error.hpp>

namespace gdnsim {

std::unique_ptr<Backend> make_golden(const BackendOptions&) { throw error("golden: not in the fuzzer"); }
std::unique_ptr<Backend> make_cuda(const BackendOptions&) { throw error("cuda: not in the fuzzer"); }

}  // namespace gdnsim
