#include "cli/launch_environment.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/error.h"
#include "core/fnv.h"

extern char** environ;

namespace strata::cli {
namespace {

using comm::RankInfo;
using Names = std::vector<std::string>;

constexpr std::string_view kAddress = "MASTER_ADDR";
constexpr std::string_view kPort = "MASTER_PORT";

std::string joined(const Names& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

// The variables of one launcher: reads numbers and knows what to say when one is wrong.
class Variables {
 public:
  Variables(const Environment& environment, std::string launcher, Names needed)
      : environment_(environment), launcher_(std::move(launcher)), needed_(std::move(needed)) {}

  bool has(std::string_view name) const { return find(name) != nullptr; }

  std::string text(std::string_view name) const {
    const std::string* value = find(name);
    if (value == nullptr) refuse(std::string(name) + (environment_.contains(name) ? " is empty" : " is missing"));
    return *value;
  }

  std::uint64_t number(std::string_view name, std::uint64_t least, std::uint64_t most) const {
    const std::string digits = text(name);
    std::uint64_t value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error != std::errc() || end != digits.data() + digits.size()) {
      refuse(std::string(name) + "=" + digits + " is not a number from " + std::to_string(least));
    }
    if (value < least || value > most) {
      refuse(std::string(name) + "=" + digits + " is not from " + std::to_string(least) + " to " +
             std::to_string(most));
    }
    return value;
  }

  std::optional<std::uint64_t> number_if_set(std::string_view name, std::uint64_t least, std::uint64_t most) const {
    return has(name) ? std::optional(number(name, least, most)) : std::nullopt;
  }

  [[noreturn]] void refuse(const std::string& what) const {
    Names set, empty;
    for (const std::string& name : needed_) {
      const auto found = environment_.find(name);
      if (found == environment_.end()) continue;
      if (found->second.empty()) {
        empty.push_back(name);
      } else {
        set.push_back(name + "=" + found->second);
      }
    }
    throw ConfigError(launcher_ + ": " + what + "; needed are " + joined(needed_) + "; set are " +
                      (set.empty() ? "none" : joined(set)) + (empty.empty() ? "" : "; empty are " + joined(empty)) +
                      "; `strata train --nproc N` and torchrun set them all");
  }

 private:
  const std::string* find(std::string_view name) const {
    const auto found = environment_.find(name);
    return found == environment_.end() || found->second.empty() ? nullptr : &found->second;
  }

  const Environment& environment_;
  std::string launcher_;
  Names needed_;
};

constexpr std::uint64_t kMostRanks = 1 << 20;

void read_rank_and_world(const Variables& variables, std::string_view rank, std::string_view world, RankInfo& info) {
  info.world = variables.number(world, 1, kMostRanks);
  // A single process may leave its rank out.
  if (info.world == 1 && !variables.has(rank)) return;
  info.rank = variables.number(rank, 0, info.world - 1);
}

void read_local(const Variables& variables, std::string_view rank, std::string_view world, RankInfo& info) {
  info.local_world = variables.number(world, 1, info.world);
  info.local_rank = variables.number(rank, 0, info.local_world - 1);
}

bool is_this_machine(std::string_view address) {
  return address == "localhost" || address == "::1" || address.starts_with("127.");
}

void read_port(const Variables& variables, RankInfo& info) {
  info.master_port = static_cast<std::uint16_t>(variables.number(kPort, 1, 65535));
}

// A port that every rank of a job finds without being told, below the range that Linux gives to outgoing connections
// (32768 on, ip(7)). Two jobs of one machine may get the same one: MASTER_PORT says another.
std::uint16_t port_from(std::string_view name) {
  return static_cast<std::uint16_t>(12000 + Fnv1a(name).value() % 20000);
}

RankInfo from_torch(const Environment& environment) {
  const Variables variables(environment, "the environment of a rank",
                            {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"});
  RankInfo info;
  read_rank_and_world(variables, "RANK", "WORLD_SIZE", info);
  if (info.world == 1) return info;
  info.master_addr = variables.text(kAddress);
  read_port(variables, info);
  const bool told = variables.has("LOCAL_RANK") || variables.has("LOCAL_WORLD_SIZE");
  if (told || !is_this_machine(info.master_addr)) {
    read_local(variables, "LOCAL_RANK", "LOCAL_WORLD_SIZE", info);
  } else {
    info.local_rank = info.rank;
    info.local_world = info.world;
  }
  const auto agent = environment.find("TORCHELASTIC_USE_AGENT_STORE");
  if (agent != environment.end() && agent->second == "True") {
    // As torch.distributed's env:// rendezvous does it: the agent's store outlives a restart of the ranks.
    info.agent_store = true;
    const auto attempt = variables.number_if_set("TORCHELASTIC_RESTART_COUNT", 0, kMostRanks);
    info.store_prefix = "/worker/attempt_" + std::to_string(attempt.value_or(0));
  }
  return info;
}

// `job` is the variable that names the job, if this launcher has one.
RankInfo from_mpi(const Variables& variables, const std::array<std::string_view, 4>& names, std::string_view job) {
  RankInfo info;
  read_rank_and_world(variables, names[0], names[1], info);
  if (info.world == 1) return info;
  read_local(variables, names[2], names[3], info);
  const bool one_machine = info.local_world == info.world;
  if (!one_machine || variables.has(kAddress)) info.master_addr = variables.text(kAddress);
  if (one_machine && !variables.has(kPort) && !job.empty() && variables.has(job)) {
    info.master_port = port_from(variables.text(job));
  } else {
    read_port(variables, info);
  }
  return info;
}

RankInfo from_open_mpi(const Environment& environment) {
  const std::array<std::string_view, 4> names{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                                              "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"};
  Names needed(names.begin(), names.end());
  needed.insert(needed.end(), {"MASTER_ADDR", "MASTER_PORT"});
  return from_mpi(Variables(environment, "a rank of Open MPI", needed), names, "PMIX_NAMESPACE");
}

RankInfo from_mpich(const Environment& environment) {
  const std::array<std::string_view, 4> names{"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"};
  Names needed(names.begin(), names.end());
  needed.insert(needed.end(), {"MASTER_ADDR", "MASTER_PORT"});
  return from_mpi(Variables(environment, "a rank of MPICH", needed), names, {});
}

// "2(x3),1" -> the number at `node`, or nothing.
std::optional<std::uint64_t> tasks_of_node(std::string_view list, std::optional<std::uint64_t> node) {
  std::vector<std::uint64_t> counts;
  while (!list.empty()) {
    const std::string_view item = list.substr(0, list.find(','));
    list.remove_prefix(std::min(item.size() + 1, list.size()));
    std::uint64_t tasks = 0, times = 1;
    const char* const end = item.data() + item.size();
    const char* at = std::from_chars(item.data(), end, tasks).ptr;
    if (std::string_view(at, end).starts_with("(x")) at = std::from_chars(at + 2, end, times).ptr + 1;
    if (at != end || tasks < 1 || times < 1 || times > kMostRanks) return std::nullopt;
    counts.insert(counts.end(), times, tasks);
  }
  if (node) return *node < counts.size() ? std::optional(counts[*node]) : std::nullopt;
  const bool alike =
      !counts.empty() && std::adjacent_find(counts.begin(), counts.end(), std::not_equal_to<>()) == counts.end();
  return alike ? std::optional(counts.front()) : std::nullopt;
}

// What srun says of its step wins over what sbatch or salloc say of the job.
std::string_view either(const Environment& environment, std::string_view step, std::string_view job) {
  const auto found = environment.find(step);
  return found != environment.end() && !found->second.empty() ? step : job;
}

// A batch script and the shell of salloc have the variables of a job and maybe rank 0, but no other rank ever starts.
bool is_task_of_srun(const Environment& environment) {
  const Variables variables(environment, "a rank of Slurm", {"SLURM_STEP_ID"});
  if (!variables.has("SLURM_PROCID")) return false;
  constexpr std::uint64_t kFirstSpecialStep = 0xfffffff0;  // batch, interactive, extern (slurm/slurm.h)
  if (const auto step = variables.number_if_set("SLURM_STEP_ID", 0, UINT32_MAX)) return *step < kFirstSpecialStep;
  const auto kind = environment.find("ENVIRONMENT");
  return kind == environment.end() || kind->second != "BATCH";
}

RankInfo from_slurm(const Environment& environment) {
  const std::string_view tasks = either(environment, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS");
  const std::string_view layout = either(environment, "SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE");
  const std::string_view nodes =
      either(environment, "SLURM_STEP_NODELIST", either(environment, "SLURM_NODELIST", "SLURM_JOB_NODELIST"));
  const Variables variables(
      environment, "a rank of Slurm",
      {"SLURM_PROCID", std::string(tasks), "SLURM_LOCALID", std::string(layout), "SLURM_NTASKS_PER_NODE",
       "SLURM_NODEID", std::string(nodes), "SLURM_JOB_ID", "MASTER_ADDR", "MASTER_PORT"});
  RankInfo info;
  read_rank_and_world(variables, "SLURM_PROCID", tasks, info);
  if (info.world == 1) return info;
  if (variables.has(layout)) {
    const auto here = tasks_of_node(variables.text(layout), variables.number_if_set("SLURM_NODEID", 0, kMostRanks));
    if (!here) {
      variables.refuse(std::string(layout) + "=" + variables.text(layout) +
                       " does not say how many ranks are on this machine (SLURM_NODEID is its place in that list)");
    }
    info.local_world = std::min<std::uint64_t>(*here, info.world);
  } else {
    info.local_world = std::min<std::uint64_t>(variables.number("SLURM_NTASKS_PER_NODE", 1, kMostRanks), info.world);
  }
  info.local_rank = variables.number("SLURM_LOCALID", 0, info.local_world - 1);
  if (variables.has(kAddress)) {
    info.master_addr = variables.text(kAddress);
  } else if (info.local_world < info.world) {
    info.master_addr = first_host(variables.text(nodes));
  }
  if (environment.contains(kPort)) {
    read_port(variables, info);
  } else {
    const auto step = environment.find("SLURM_STEP_ID");
    info.master_port =
        port_from(variables.text("SLURM_JOB_ID") + "." + (step == environment.end() ? std::string("0") : step->second));
  }
  return info;
}

}  // namespace

Environment environment_of_process() {
  Environment environment;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::size_t equals = text.find('=');
    if (equals != std::string_view::npos) environment.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return environment;
}

std::string first_host(std::string_view list) {
  std::string host;
  for (std::size_t i = 0; i < list.size() && list[i] != ','; ++i) {
    if (list[i] != '[') {
      host += list[i];
      continue;
    }
    const std::size_t first = i + 1;
    host += list.substr(first, std::min(list.find_first_of("-,]", first), list.size()) - first);
    i = std::min(list.find(']', first), list.size() - 1);
  }
  return host;
}

comm::RankInfo rank_from_environment(const Environment& environment) {
  const auto set = [&](std::string_view name) {
    const auto found = environment.find(name);
    return found != environment.end() && !found->second.empty();
  };
  if (set("RANK") || set("WORLD_SIZE")) return from_torch(environment);
  // mpirun inside a Slurm allocation starts its daemons by srun: then Slurm's numbers are those of the daemons.
  if (set("OMPI_COMM_WORLD_SIZE") || set("OMPI_COMM_WORLD_RANK")) return from_open_mpi(environment);
  // srun --mpi=pmi2 sets PMI_RANK as well, without a local one: then Slurm knows more.
  if ((set("PMI_SIZE") || set("PMI_RANK")) && (set("MPI_LOCALRANKID") || !is_task_of_srun(environment))) {
    return from_mpich(environment);
  }
  if (is_task_of_srun(environment)) return from_slurm(environment);
  // LOCAL_RANK alone: somebody meant to start several.
  if (set("LOCAL_RANK")) return from_torch(environment);
  return {};
}

}  // namespace strata::cli
