// Processes that mpirun (or srun) started together: who one is, and how they talk. The only place that knows MPI.
#pragma once

#include <memory>
#include <string>

#include "cli.hpp"
#include "gdnsim/spread.hpp"

namespace gdnsim::tools {

/// As the starter says in the environment, so before joining: {0, 1, 0, 1} for a process that was started alone.
struct Launched {
  int rank = 0, ranks = 1;
  int local_rank = 0, local_ranks = 1;  // of those on this machine
};
Launched launched();

/// Joins the others; null when there are none. Throws Error when there are some and this build has no MPI. Called once.
std::unique_ptr<Spread> join_ranks();

/// Throws Error when there are others: a command that cannot be spread would run several times over.
void require_alone(const std::string& command);

/// What the process has to return: the exit code of the first rank, 0 for the others. A failure ends all ranks at once.
int leave_ranks(int code);

/// The ranks on one machine share its CPUs, and its devices go round. What the user chose stays.
void share_machine(BackendChoice& choice);

}  // namespace gdnsim::tools
