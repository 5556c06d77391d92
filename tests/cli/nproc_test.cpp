#include "cli/nproc.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.h"

namespace strata::cli {
namespace {

using testing::HasSubstr;

std::string refusal_of(Arguments arguments, const Environment& environment = {}) {
  try {
    take_nproc(arguments, environment);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(TakeNproc, FindsNothingWhereNothingIs) {
  Arguments arguments{"--config", "a.yaml", "--nprocs", "3"};
  EXPECT_EQ(take_nproc(arguments, {{"RANK", "0"}}), std::nullopt);
  EXPECT_EQ(arguments.size(), 4U) << "another option is not ours";
}

TEST(TakeNproc, TakesOutTheOptionAndItsValue) {
  Arguments arguments{"--config", "a.yaml", "--nproc", "3", "--bf16"};
  EXPECT_EQ(take_nproc(arguments, {}), 3U);
  EXPECT_EQ(arguments, (Arguments{"--config", "a.yaml", "--bf16"}));
  arguments = {"--nproc=12"};
  EXPECT_EQ(take_nproc(arguments, {}), 12U);
  EXPECT_TRUE(arguments.empty());
}

TEST(TakeNproc, RefusesWhatIsNoNumberOfRanks) {
  for (const char* text : {"0", "-1", "two", "", "2x", " 2", "1.5", "65537", "99999999999999999999"}) {
    EXPECT_THAT(refusal_of({"--nproc", text}), HasSubstr("from 1 to 65536")) << text;
    EXPECT_THAT(refusal_of({std::string("--nproc=") + text}), HasSubstr("from 1 to 65536")) << text;
  }
  EXPECT_THAT(refusal_of({"--nproc"}), HasSubstr("needs a number"));
  EXPECT_THAT(refusal_of({"--nproc", "2", "--nproc=2"}), HasSubstr("twice"));
}

TEST(TakeNproc, RefusesToStartRanksInsideARank) {
  EXPECT_THAT(refusal_of({"--nproc", "2"}, {{"RANK", "0"}}), HasSubstr("RANK=0"));
  EXPECT_THAT(refusal_of({"--nproc", "2"}, {{"WORLD_SIZE", "4"}}), HasSubstr("WORLD_SIZE=4"));
  EXPECT_THAT(refusal_of({"--nproc", "1"}, {{"SLURM_PROCID", "0"},
                                            {"SLURM_NTASKS", "2"},
                                            {"SLURM_LOCALID", "0"},
                                            {"SLURM_NTASKS_PER_NODE", "2"},
                                            {"SLURM_JOB_ID", "1"}}),
              HasSubstr("mpirun or srun"));
}

}  // namespace
}  // namespace strata::cli
