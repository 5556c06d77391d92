#include "models/freeze.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.h"

namespace strata::models {
namespace {

using ::testing::HasSubstr;

std::vector<zero::GroupDecl> groups() {
  return {{"model.embed_tokens", {{"model.embed_tokens.weight", {4, 2}}}},
          {"model.layers.1", {{"model.layers.1.a.weight", {2}}, {"model.layers.1.b.weight", {2}}}},
          {"model.layers.10", {{"model.layers.10.a.weight", {2}}}},
          {"head", {{"model.norm.weight", {2}}, {"lm_head.weight", {4, 2}}}}};
}

// Names of the groups that stay trainable.
std::vector<std::string> trained(const std::vector<std::string>& prefixes) {
  std::vector<zero::GroupDecl> all = groups();
  freeze(all, prefixes);
  std::vector<std::string> names;
  for (const zero::GroupDecl& group : all) {
    if (group.trainable) names.push_back(group.name);
  }
  return names;
}

std::string refusal(const std::vector<std::string>& prefixes) {
  try {
    trained(prefixes);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Freeze, NothingWithoutNames) {
  EXPECT_EQ(trained({}).size(), 4U);
}

TEST(Freeze, APrefixIsWholePartsOfAName) {
  const std::vector<std::string> without_layer_one{"model.embed_tokens", "model.layers.10", "head"};
  EXPECT_EQ(trained({"model.layers.1"}), without_layer_one);
  EXPECT_EQ(trained({"model.layers.1."}), without_layer_one);
  EXPECT_EQ(trained({"model.layers.1.a.weight", "model.layers.1.b"}), without_layer_one);
  EXPECT_EQ(trained({"model.layers", "model.embed_tokens.weight"}), std::vector<std::string>{"head"});
}

TEST(Freeze, APartOfAGroupIsRefusedWithWhatIsMissing) {
  EXPECT_THAT(refusal({"lm_head"}), HasSubstr("a part of head only: lm_head.weight, but not model.norm.weight"));
  EXPECT_THAT(refusal({"model.layers.1.a"}), HasSubstr("but not model.layers.1.b.weight"));
}

TEST(Freeze, ANameThatNothingHasIsRefusedWithTheLayersThereAre) {
  EXPECT_THAT(refusal({"model.embed_tokens", "model.layers.2"}), HasSubstr("'model.layers.2'; its layers are "));
  EXPECT_THAT(refusal({""}), HasSubstr("begins with ''"));
  EXPECT_THAT(refusal({"model.layers.1.a.weigh"}), HasSubstr("model.layers.1.a.weigh"));
}

TEST(Freeze, FreezingEverythingIsRefused) {
  EXPECT_THAT(refusal({"model", "lm_head"}), HasSubstr("nothing is left to train"));
}

}  // namespace
}  // namespace strata::models
