#include "cli/launch_environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/error.h"

namespace strata::cli {
namespace {

using comm::RankInfo;
using testing::HasSubstr;
using testing::Not;

std::string refusal_of(const Environment& environment) {
  try {
    rank_from_environment(environment);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

const Environment kByHand{{"RANK", "1"}, {"WORLD_SIZE", "3"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "29500"}};

Environment with(Environment environment, const Environment& changes) {
  for (const auto& [name, value] : changes) environment[name] = value;
  return environment;
}

Environment without(Environment environment, const std::string& name) {
  environment.erase(name);
  return environment;
}

TEST(RankFromEnvironment, IsOneProcessWhereNothingIsSet) {
  const RankInfo info = rank_from_environment({{"PATH", "/bin"}, {"MASTER_ADDR", "node1"}, {"MASTER_PORT", "x"}});
  EXPECT_EQ(info.rank, 0U);
  EXPECT_EQ(info.world, 1U);
}

TEST(RankFromEnvironment, ReadsVariablesSetByHand) {
  const RankInfo info = rank_from_environment(kByHand);
  EXPECT_EQ(info.rank, 1U);
  EXPECT_EQ(info.world, 3U);
  EXPECT_EQ(info.local_rank, 1U) << "all ranks are on this machine";
  EXPECT_EQ(info.local_world, 3U);
  EXPECT_EQ(info.master_addr, "127.0.0.1");
  EXPECT_EQ(info.master_port, 29500);
  EXPECT_EQ(info.store_prefix, "");
  EXPECT_FALSE(info.agent_store);
}

TEST(RankFromEnvironment, ReadsTorchrun) {
  const RankInfo info = rank_from_environment({{"RANK", "5"},
                                               {"LOCAL_RANK", "1"},
                                               {"WORLD_SIZE", "8"},
                                               {"LOCAL_WORLD_SIZE", "4"},
                                               {"MASTER_ADDR", "node7"},
                                               {"MASTER_PORT", "1"},
                                               {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                                               {"TORCHELASTIC_RESTART_COUNT", "2"}});
  EXPECT_EQ(info.rank, 5U);
  EXPECT_EQ(info.world, 8U);
  EXPECT_EQ(info.local_rank, 1U);
  EXPECT_EQ(info.local_world, 4U);
  EXPECT_EQ(info.master_addr, "node7");
  EXPECT_EQ(info.master_port, 1);
  EXPECT_EQ(info.store_prefix, "/worker/attempt_2");
  EXPECT_TRUE(info.agent_store);
}

TEST(RankFromEnvironment, LetsRankZeroRunTheStoreWhereTheAgentDoesNot) {
  const RankInfo info = rank_from_environment(with(kByHand, {{"TORCHELASTIC_USE_AGENT_STORE", "False"}}));
  EXPECT_FALSE(info.agent_store);
  EXPECT_EQ(info.store_prefix, "");
}

TEST(RankFromEnvironment, NeedsNothingElseForAWorldOfOne) {
  EXPECT_EQ(rank_from_environment({{"WORLD_SIZE", "1"}}).world, 1U);
  EXPECT_EQ(rank_from_environment({{"WORLD_SIZE", "1"}, {"RANK", "0"}}).world, 1U);
}

// Each a typo or an omission that must name itself.
TEST(RankFromEnvironment, RefusesWhatCannotBe) {
  const std::vector<std::pair<Environment, std::string>> cases{
      {without(kByHand, "RANK"), "RANK is missing"},
      {without(kByHand, "WORLD_SIZE"), "WORLD_SIZE is missing"},
      {without(kByHand, "MASTER_ADDR"), "MASTER_ADDR is missing"},
      {without(kByHand, "MASTER_PORT"), "MASTER_PORT is missing"},
      {with(kByHand, {{"RANK", ""}}), "RANK is empty"},
      {with(kByHand, {{"MASTER_PORT", ""}}), "MASTER_PORT is empty"},
      {with(kByHand, {{"MASTER_ADDR", ""}}), "MASTER_ADDR is empty"},
      {with(kByHand, {{"RANK", "3"}}), "RANK=3 is not from 0 to 2"},
      {with(kByHand, {{"RANK", "-1"}}), "RANK=-1 is not a number"},
      {with(kByHand, {{"RANK", "1 "}}), "RANK=1  is not a number"},
      {with(kByHand, {{"WORLD_SIZE", "two"}}), "WORLD_SIZE=two is not a number"},
      {with(kByHand, {{"WORLD_SIZE", "0"}}), "WORLD_SIZE=0 is not from 1"},
      {with(kByHand, {{"WORLD_SIZE", "99999999999999999999"}}), "WORLD_SIZE=99999999999999999999 is not a number"},
      {with(kByHand, {{"MASTER_PORT", "99999"}}), "MASTER_PORT=99999 is not from 1 to 65535"},
      {with(kByHand, {{"MASTER_PORT", "0"}}), "MASTER_PORT=0 is not from 1 to 65535"},
      {with(kByHand, {{"MASTER_PORT", "abc"}}), "MASTER_PORT=abc is not a number"},
      {with(kByHand, {{"LOCAL_RANK", "2"}, {"LOCAL_WORLD_SIZE", "2"}}), "LOCAL_RANK=2 is not from 0 to 1"},
      {with(kByHand, {{"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "4"}}), "LOCAL_WORLD_SIZE=4 is not from 1 to 3"},
      {with(kByHand, {{"LOCAL_RANK", "0"}}), "LOCAL_WORLD_SIZE is missing"},
      {with(kByHand, {{"MASTER_ADDR", "node1"}}), "LOCAL_WORLD_SIZE is missing"},
      {{{"LOCAL_RANK", "0"}}, "WORLD_SIZE is missing"},
      {{{"RANK", "2"}, {"WORLD_SIZE", "2"}}, "RANK=2 is not from 0 to 1"},
  };
  for (const auto& [environment, expected] : cases) EXPECT_THAT(refusal_of(environment), HasSubstr(expected));
}

TEST(RankFromEnvironment, SaysWhichVariablesAreNeededAndWhichAreSet) {
  const std::string message = refusal_of({{"WORLD_SIZE", "2"}, {"MASTER_PORT", ""}, {"HOME", "/root"}});
  EXPECT_THAT(message,
              HasSubstr("needed are RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT"));
  EXPECT_THAT(message, HasSubstr("set are WORLD_SIZE=2;"));
  EXPECT_THAT(message, HasSubstr("empty are MASTER_PORT"));
  EXPECT_THAT(message, HasSubstr("--nproc"));
  EXPECT_THAT(message, Not(HasSubstr("HOME")));
}

const Environment kOpenMpi{{"OMPI_COMM_WORLD_RANK", "3"},
                           {"OMPI_COMM_WORLD_SIZE", "4"},
                           {"OMPI_COMM_WORLD_LOCAL_RANK", "3"},
                           {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                           {"PMIX_NAMESPACE", "prterun-here-71@1"}};

TEST(RankFromEnvironment, ReadsOpenMpiOnOneMachineWithoutAnyHelp) {
  const RankInfo info = rank_from_environment(kOpenMpi);
  EXPECT_EQ(info.rank, 3U);
  EXPECT_EQ(info.world, 4U);
  EXPECT_EQ(info.local_rank, 3U);
  EXPECT_EQ(info.local_world, 4U);
  EXPECT_EQ(info.master_addr, "127.0.0.1");
  EXPECT_GE(info.master_port, 12000);
  EXPECT_LT(info.master_port, 32000);
  EXPECT_FALSE(info.agent_store);
  EXPECT_EQ(rank_from_environment(with(kOpenMpi, {{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "0"}}))
                .master_port,
            info.master_port);
  EXPECT_NE(rank_from_environment(with(kOpenMpi, {{"PMIX_NAMESPACE", "prterun-here-72@1"}})).master_port,
            info.master_port);
}

TEST(RankFromEnvironment, OfOpenMpiTakesTheMeetingPointThatIsSet) {
  const RankInfo info = rank_from_environment(
      with(kOpenMpi, {{"MASTER_ADDR", "node1"}, {"MASTER_PORT", "4000"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}}));
  EXPECT_EQ(info.master_addr, "node1");
  EXPECT_EQ(info.master_port, 4000);
}

TEST(RankFromEnvironment, OfOpenMpiOnSeveralMachinesNeedsAMeetingPoint) {
  const Environment two_machines =
      with(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_RANK", "1"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
  EXPECT_THAT(refusal_of(two_machines), HasSubstr("MASTER_ADDR is missing"));
  EXPECT_THAT(refusal_of(with(two_machines, {{"MASTER_ADDR", "node1"}})), HasSubstr("MASTER_PORT is missing"));
}

TEST(RankFromEnvironment, ReadsMpich) {
  const RankInfo info = rank_from_environment({{"PMI_RANK", "1"},
                                               {"PMI_SIZE", "2"},
                                               {"MPI_LOCALRANKID", "1"},
                                               {"MPI_LOCALNRANKS", "2"},
                                               {"MASTER_PORT", "4000"}});
  EXPECT_EQ(info.rank, 1U);
  EXPECT_EQ(info.world, 2U);
  EXPECT_EQ(info.local_rank, 1U);
  EXPECT_EQ(info.local_world, 2U);
  EXPECT_EQ(info.master_addr, "127.0.0.1");
  EXPECT_EQ(info.master_port, 4000);
}

TEST(RankFromEnvironment, OfMpichNeedsAPort) {
  EXPECT_THAT(refusal_of({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}}),
              HasSubstr("MASTER_PORT is missing"));
}

const Environment kSlurm{{"SLURM_JOB_ID", "812"},
                         {"SLURM_STEP_ID", "0"},
                         {"SLURM_PROCID", "4"},
                         {"SLURM_NTASKS", "7"},
                         {"SLURM_LOCALID", "0"},
                         {"SLURM_NODEID", "2"},
                         {"SLURM_TASKS_PER_NODE", "2(x3),1"},
                         {"SLURM_NODELIST", "node[08-10,17]"}};

TEST(RankFromEnvironment, ReadsAStepOfSlurm) {
  const RankInfo info = rank_from_environment(kSlurm);
  EXPECT_EQ(info.rank, 4U);
  EXPECT_EQ(info.world, 7U);
  EXPECT_EQ(info.local_rank, 0U);
  EXPECT_EQ(info.local_world, 2U);
  EXPECT_EQ(info.master_addr, "node08");
  EXPECT_GE(info.master_port, 12000);
  EXPECT_LT(info.master_port, 32000);
  EXPECT_FALSE(info.agent_store);
  const RankInfo last = rank_from_environment(with(kSlurm, {{"SLURM_PROCID", "6"}, {"SLURM_NODEID", "3"}}));
  EXPECT_EQ(last.local_world, 1U);
  EXPECT_EQ(last.master_port, info.master_port);
  EXPECT_NE(rank_from_environment(with(kSlurm, {{"SLURM_STEP_ID", "1"}})).master_port, info.master_port);
}

TEST(RankFromEnvironment, OfSlurmPrefersWhatTheStepSays) {
  const RankInfo info = rank_from_environment(with(kSlurm, {{"SLURM_STEP_NUM_TASKS", "6"},
                                                            {"SLURM_STEP_TASKS_PER_NODE", "3(x2)"},
                                                            {"SLURM_NODEID", "1"},
                                                            {"SLURM_STEP_NODELIST", "node[09-10]"}}));
  EXPECT_EQ(info.world, 6U);
  EXPECT_EQ(info.local_world, 3U);
  EXPECT_EQ(info.master_addr, "node09");
}

TEST(RankFromEnvironment, OfSlurmTakesTheMeetingPointThatIsSet) {
  const RankInfo info = rank_from_environment(with(kSlurm, {{"MASTER_ADDR", "10.0.0.1"}, {"MASTER_PORT", "4000"}}));
  EXPECT_EQ(info.master_addr, "10.0.0.1");
  EXPECT_EQ(info.master_port, 4000);
}

TEST(RankFromEnvironment, OfSlurmWithOneNodeMeetsOnThisMachine) {
  const RankInfo info = rank_from_environment({{"SLURM_JOB_ID", "812"},
                                               {"SLURM_PROCID", "1"},
                                               {"SLURM_NTASKS", "2"},
                                               {"SLURM_LOCALID", "1"},
                                               {"SLURM_NTASKS_PER_NODE", "2"},
                                               {"SLURM_NODELIST", "node08"}});
  EXPECT_EQ(info.world, 2U);
  EXPECT_EQ(info.local_world, 2U);
  EXPECT_EQ(info.master_addr, "127.0.0.1");
}

TEST(RankFromEnvironment, IsOneProcessInAnAllocationWithoutSrun) {
  EXPECT_EQ(rank_from_environment(without(kSlurm, "SLURM_PROCID")).world, 1U) << "the shell of salloc";
  EXPECT_EQ(rank_from_environment(with(kSlurm, {{"SLURM_NTASKS", "1"}, {"SLURM_PROCID", "0"}})).world, 1U);
  const Environment batch = with(without(kSlurm, "SLURM_STEP_ID"), {{"SLURM_PROCID", "0"}, {"ENVIRONMENT", "BATCH"}});
  EXPECT_EQ(rank_from_environment(batch).world, 1U) << "a batch script";
  EXPECT_EQ(rank_from_environment(with(kSlurm, {{"SLURM_STEP_ID", "4294967290"}})).world, 1U) << "interactive step";
}

TEST(RankFromEnvironment, OfSlurmRefusesWhatCannotBe) {
  EXPECT_THAT(refusal_of(without(kSlurm, "SLURM_LOCALID")), HasSubstr("SLURM_LOCALID is missing"));
  EXPECT_THAT(refusal_of(without(kSlurm, "SLURM_NODELIST")), HasSubstr("is missing"));
  EXPECT_THAT(refusal_of(without(kSlurm, "SLURM_JOB_ID")), HasSubstr("SLURM_JOB_ID is missing"));
  EXPECT_THAT(refusal_of(without(kSlurm, "SLURM_TASKS_PER_NODE")), HasSubstr("SLURM_NTASKS_PER_NODE is missing"));
  EXPECT_THAT(refusal_of(with(kSlurm, {{"MASTER_PORT", ""}})), HasSubstr("MASTER_PORT is empty"));
  EXPECT_THAT(refusal_of(with(kSlurm, {{"SLURM_PROCID", "7"}})), HasSubstr("SLURM_PROCID=7 is not from 0 to 6"));
  EXPECT_THAT(refusal_of(without(kSlurm, "SLURM_NODEID")), HasSubstr("SLURM_TASKS_PER_NODE=2(x3),1"));
  for (const char* layout : {"2(x", "x", "2(x3", "0", "2,,1", "2(x99999999999999)", "(x2)"}) {
    EXPECT_THAT(refusal_of(with(kSlurm, {{"SLURM_TASKS_PER_NODE", layout}})), HasSubstr("does not say how many"))
        << layout;
  }
}

TEST(RankFromEnvironment, PrefersTorchrunThenMpiThenSlurm) {
  Environment all = kSlurm;
  EXPECT_EQ(rank_from_environment(all).world, 7U);
  all = with(all, {{"PMI_RANK", "1"}, {"PMI_SIZE", "5"}});
  EXPECT_EQ(rank_from_environment(all).world, 7U) << "srun --mpi=pmi2 sets these as well";
  all = with(all, {{"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "5"}, {"MASTER_PORT", "4000"}});
  EXPECT_EQ(rank_from_environment(all).world, 5U) << "mpirun inside an allocation";
  all = with(all, kOpenMpi);
  EXPECT_EQ(rank_from_environment(all).world, 4U);
  all = with(all, kByHand);
  EXPECT_EQ(rank_from_environment(all).world, 3U);
}

TEST(FirstHost, OfASlurmNodeList) {
  EXPECT_EQ(first_host("node1"), "node1");
  EXPECT_EQ(first_host("b,a"), "b");
  EXPECT_EQ(first_host("node[01-03,7]"), "node01");
  EXPECT_EQ(first_host("node[7,01-03],other"), "node7");
  EXPECT_EQ(first_host("rack[2-3]-node[10-12].local,x"), "rack2-node10.local");
  EXPECT_EQ(first_host(""), "");
  EXPECT_EQ(first_host("node["), "node");
  EXPECT_EQ(first_host("node[3"), "node3");
}

}  // namespace
}  // namespace strata::cli
