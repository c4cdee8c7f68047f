// Writes the log of a trace or a recipe, as `gdnsim run --no-provenance` does, without the rest of the program: tests/cli/matrix.py
// builds this with several compilers and instruction sets and demands the same bytes.
//
//   matrix_run SOURCE LOG CONTRACT THREADS LEVEL     exit 0, or 2 and one line
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <string>

#include <gdnsim/backend.hpp>
#include <gdnsim/error.hpp>
#include <gdnsim/log.hpp>
#include <gdnsim/recipe.hpp>
#include <gdnsim/simulator.hpp>
#include <gdnsim/trace.hpp>

namespace {

using namespace gdnsim;

LogHeader header_of(Stream& stream, const ContractSet& contracts) {
  LogHeader header;
  header.model = stream.model();
  header.layers.resize(static_cast<std::size_t>(stream.model().layers()));
  std::iota(header.layers.begin(), header.layers.end(), 0);
  header.contracts = contracts;
  header.source = stream.source();
  header.steps = stream.steps();
  header.rows = stream.rows();
  header.state = state_policy_from("full");
  header.events = events_of(stream, 0, header.steps);
  for (std::int64_t step = 0; step < header.steps; ++step) header.plans.push_back(stream.plan(step));
  return header;
}

std::unique_ptr<Stream> open_source(const std::string& path) {
  if (path.ends_with(".json")) return open_recipe(path);
  return open_trace(path);
}

void write_log(char** arguments) {
  const auto stream = open_source(arguments[1]);
  const ContractSet contracts = load_contracts(arguments[3]);
  require_defined(contracts.decode, stream->model());
  require_defined(contracts.mixed, stream->model());
  const auto backend = make_golden({.threads = std::atoi(arguments[4]), .cpu_level = arguments[5]});
  const LogHeader header = header_of(*stream, contracts);
  const auto pool = backend->make_pool(stream->model(), header.layers);
  const auto log = create_log(arguments[2], header, {.force = true});
  simulate({*stream, *backend, contracts, header.layers, header.steps, header.taps}, *pool, *log);
  log->close();
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 6) {
    std::fprintf(stderr, "usage: matrix_run SOURCE LOG CONTRACT THREADS LEVEL\n");
    return 2;
  }
  try {
    write_log(arguments);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "matrix_run: %s\n", error.what());
    return 2;
  }
}
