#include "mpi_ranks.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "gdnsim/devices.hpp"
#include "gdnsim/error.hpp"

#ifdef GDNSIM_MPI
#define OMPI_SKIP_MPICXX
#define MPICH_SKIP_MPICXX
#include <mpi.h>

#include <chrono>
#include <limits>
#include <thread>
#endif

namespace gdnsim::tools {
namespace {

/// The first of these variables that holds a number; Open MPI's, then those of MPICH and of Slurm's own starters.
int number_of(std::initializer_list<const char*> names, int otherwise) {
  for (const char* name : names)
    if (const char* text = std::getenv(name); text != nullptr && *text != '\0') return std::atoi(text);
  return otherwise;
}

#ifdef GDNSIM_MPI

/// Waits without spinning: a rank that is done leaves its CPU to those that are not.
void wait_for(MPI_Request& request) {
  int done = 0;
  for (MPI_Test(&request, &done, MPI_STATUS_IGNORE); done == 0; MPI_Test(&request, &done, MPI_STATUS_IGNORE))
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

class MpiSpread final : public Spread {
 public:
  MpiSpread() {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks_);
  }
  int rank() const override { return rank_; }
  int ranks() const override { return ranks_; }
  std::vector<std::string> exchange(const std::string& mine) override;

 private:
  int rank_ = 0, ranks_ = 1;
};

std::vector<std::string> MpiSpread::exchange(const std::string& mine) {
  const auto n = static_cast<std::size_t>(ranks_);
  const std::uint64_t size = mine.size();
  std::vector<std::uint64_t> sizes(n);
  MPI_Request request;
  MPI_Iallgather(&size, 1, MPI_UINT64_T, sizes.data(), 1, MPI_UINT64_T, MPI_COMM_WORLD, &request);
  wait_for(request);
  std::uint64_t total = 0;
  std::vector<int> counts(n), begins(n);
  for (std::size_t rank = 0; rank < n; ++rank) {
    begins[rank] = static_cast<int>(total), counts[rank] = static_cast<int>(sizes[rank]);
    total += sizes[rank];
    if (total > std::numeric_limits<int>::max())
      throw error("the ranks' findings take more than 2 GiB; try fewer --layers");
  }
  std::string all(total, '\0');
  MPI_Iallgatherv(mine.data(), counts[static_cast<std::size_t>(rank_)], MPI_BYTE, all.data(), counts.data(),
                  begins.data(), MPI_BYTE, MPI_COMM_WORLD, &request);
  wait_for(request);
  std::vector<std::string> texts;
  for (std::size_t rank = 0; rank < n; ++rank)
    texts.push_back(all.substr(static_cast<std::size_t>(begins[rank]), sizes[rank]));
  return texts;
}

bool joined() {
  int yes = 0;
  MPI_Initialized(&yes);
  return yes != 0;
}

#endif

}  // namespace

Launched launched() {
  Launched here;
  here.rank = number_of({"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"}, 0);
  here.ranks = std::max(number_of({"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}, 1), here.rank + 1);
  // srun --mpi=pmix tells the rank alone; the size is then the step's.
  if (std::getenv("PMIX_RANK") != nullptr) here.ranks = std::max(here.ranks, number_of({"SLURM_STEP_NUM_TASKS"}, 1));
  here.local_rank = number_of({"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"}, 0);
  here.local_ranks = number_of({"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"}, 1);
  if (here.ranks == 1) return {};
  return here;
}

std::unique_ptr<Spread> join_ranks() {
  const int ranks = launched().ranks;
  if (ranks == 1) return nullptr;
#ifdef GDNSIM_MPI
  MPI_Init(nullptr, nullptr);
  auto spread = std::make_unique<MpiSpread>();
  if (spread->ranks() != ranks)
    throw error("started as ", ranks, " processes, but MPI finds ", spread->ranks(),
                ": was it started by another MPI's mpirun?");
  return spread;
#else
  throw error("started as ", ranks,
              " processes, but this build has no MPI (set up with -Dmpi=enabled, or use --shard)");
#endif
}

void require_alone(const std::string& command) {
  if (const int ranks = launched().ranks; ranks > 1)
    throw error(command, ": cannot be spread over ", ranks, " processes; replay and drift can");
}

int leave_ranks(int code) {
#ifdef GDNSIM_MPI
  if (!joined()) return code;
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (code == kFailed) MPI_Abort(MPI_COMM_WORLD, code);
  MPI_Finalize();
  return rank == 0 ? code : 0;
#else
  return code;
#endif
}

void share_machine(BackendChoice& choice) {
  const Launched here = launched();
  if (here.ranks == 1) return;
  cpu_set_t set;
  const long machine = sysconf(_SC_NPROCESSORS_ONLN);
  const long mine = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : machine;
  // A starter that binds ranks to CPUs has shared them out already.
  if (choice.options.threads == 0 && mine >= machine)
    choice.options.threads = static_cast<int>(std::max(1L, machine / std::max(1, here.local_ranks)));
  const bool free = choice.name != "golden" && choice.device != nullptr && choice.device->count() == 0;
  if (const int devices = free ? cuda_devices() : 0; devices > 1) choice.options.device = here.local_rank % devices;
}

}  // namespace gdnsim::tools
