// Random trainings, each as it runs in memory and in random other ways: placement, order and time change no bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <random>
#include <sstream>

#include "core/numeric.h"
#include "engine/engine.h"
#include "engine/ruin_row.h"
#include "engine/tiny_run.h"
#include "hf/safetensors.h"
#include "support/temp_dir.h"
#include "support/test_seed.h"
#include "support/watchdog.h"

namespace strata::engine {
namespace {

using offload::TierKind;

// An embedding row of infinities: no other batch has this token.
constexpr std::int64_t kBadToken = test::kTinyVocabulary - 1;

enum class Step : std::uint8_t { Good, NotFinite, NothingToLearn };

// What decides the bits of a run.
struct Training {
  OptimizerConfig optimizer;
  DType param_type = DType::BF16;
  bool tied = false;
  double max_grad_norm = 1;  // 0: no clipping
  std::size_t micro_batches = 1;
  std::vector<Step> steps;
};

class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}
  std::size_t below(std::size_t end) { return engine_() % end; }
  bool flip() { return below(2) == 0; }
  template <typename T>
  T one_of(std::initializer_list<T> choices) {
    return choices.begin()[below(choices.size())];
  }

 private:
  std::mt19937_64 engine_;
};

Training random_training(Random& random) {
  Training training;
  training.param_type = random.one_of({DType::BF16, DType::BF16, DType::F32});
  training.optimizer.kind = static_cast<OptimizerKind>(random.below(kOptimizerKinds));
  training.optimizer.moments = random.one_of({MomentEncoding::Fp32, MomentEncoding::Bf16, MomentEncoding::Block8});
  training.tied = random.below(3) == 0;
  training.max_grad_norm = random.one_of({0.0, 0.0, 1.0, 0.01});
  training.micro_batches = random.one_of<std::size_t>({1, 3});
  training.steps = {Step::Good, Step::Good, Step::Good, Step::Good};
  for (std::size_t skips = random.below(3); skips-- > 0;) {
    // A tied table would be the head of the other tokens, too.
    const Step bad = training.tied ? Step::NothingToLearn : random.one_of({Step::NotFinite, Step::NothingToLearn});
    training.steps.insert(training.steps.begin() + static_cast<std::ptrdiff_t>(random.below(4)), bad);
  }
  return training;
}

std::string text(const Training& training) {
  std::ostringstream out;
  out << name_of(training.optimizer.kind) << ", moments " << name_of(training.optimizer.moments) << ", "
      << name_of(training.param_type) << (training.tied ? ", tied" : "") << ", clip " << training.max_grad_norm << ", "
      << training.micro_batches << " micro-batches, steps ";
  for (const Step step : training.steps) out << (step == Step::Good ? 'g' : step == Step::NotFinite ? 'n' : '0');
  return out.str();
}

std::vector<data::Batch> batches_of(Step step, std::size_t number, std::size_t micro_batches) {
  std::vector<data::Batch> batches;
  for (std::size_t m = 0; m < micro_batches; ++m) {
    data::Batch batch = test::tiny_batch(100 * number + m);
    for (std::int64_t& token : batch.tokens) token %= kBadToken;
    if (step == Step::NothingToLearn) {
      batch.labels.assign(batch.labels.size(), -100);
      batch.target_tokens = 0;
    }
    if (step == Step::NotFinite && m + 1 == micro_batches) batch.tokens[3] = kBadToken;
    batches.push_back(std::move(batch));
  }
  return batches;
}

// What a run leaves.
struct Outcome {
  std::vector<double> numbers;                   // losses and norms of the good steps, and a loss at the end
  std::vector<std::uint32_t> masters;            // of every parameter
  std::map<std::string, std::string> moments{};  // bytes by tensor
  RunState state{};
};

class EqualRuns : public testing::Test {
 protected:
  EqualRuns() {
    std::filesystem::create_directories(swap());
    for (const bool tied : {false, true}) {
      const std::filesystem::path shape = folder_.path() / "shape";
      test::write_tiny_model(shape, tied ? R"(, "tie_word_embeddings": true)" : "");
      Engine::create(test::tiny_engine(shape))->export_model(model(tied));
    }
    test::ruin_row(model(false), kBadToken);
  }

  std::filesystem::path model(bool tied) const { return folder_.path() / (tied ? "tied" : "untied"); }
  std::filesystem::path swap() const { return folder_.path() / "swap"; }

  // Everything in memory, one thing after the other.
  EngineConfig plain(const Training& training) const {
    EngineConfig config = test::tiny_engine(model(training.tied));
    config.random_weights = false;
    config.param_type = training.param_type;
    config.optimizer = training.optimizer;
    config.adamw.max_grad_norm = training.max_grad_norm;
    config.micro_batches = static_cast<std::int64_t>(training.micro_batches);
    config.accumulation = Accumulation::Horizontal;
    config.param_home = config.grad_home = config.optimizer_home = TierKind::Device;
    config.overlap_update = false;
    config.recomputed_layers = 2;
    return config;
  }

  // The same training, in any way.
  EngineConfig any_way(const Training& training, Random& random) const {
    EngineConfig config = plain(training);
    config.param_home = random.one_of({TierKind::Device, TierKind::Host, TierKind::Nvme, TierKind::Nvme});
    config.grad_home = random.one_of({TierKind::Device, TierKind::Host, TierKind::Nvme});
    config.optimizer_home = random.one_of({TierKind::Device, TierKind::Host, TierKind::Nvme, TierKind::Nvme});
    config.param_host_share = random.one_of({0.0, 0.0, 0.3, 1.0});
    config.optimizer_host_share = random.one_of({0.0, 0.0, 0.3, 1.0});
    if (training.param_type == DType::BF16 && random.flip()) config.optimizer.master = MasterEncoding::Remainder;
    if (!training.tied && random.flip()) config.accumulation = Accumulation::Vertical;
    config.overlap_update = random.below(4) != 0;
    // Updates that begin during backward cannot be undone: a gradient that is not finite ends such a run.
    const bool skips = std::count(training.steps.begin(), training.steps.end(), Step::NotFinite) > 0;
    config.delay_update = skips || random.flip();
    config.recomputed_layers.reset();
    if (random.flip()) config.recomputed_layers = random.below(3);
    config.adam_threads = 1 + random.below(2);
    config.adversarial_streams = random.below(4) == 0;
    config.nvme_checksums = random.below(4) == 0;
    config.io_backend = random.one_of({IoBackend::Auto, IoBackend::Threads});
    config.nvme_paths = {swap()};
    config.nvme_budget = std::uint64_t{64} << 20;
    config.slot_bytes = random.one_of<std::uint64_t>({1, 1, 2}) << 18;
    if (random.flip()) config.look_ahead_bytes = random.below(4) * *config.slot_bytes;
    if (random.below(4) != 0) squeeze(config, random.one_of<std::uint64_t>({0, 1, 6}));
    return config;
  }

  // Leaves `more` pages than the fewest, and no device memory over.
  static void squeeze(EngineConfig& config, std::uint64_t more) {
    const MemoryPlan ample = Engine::plan(config);
    const std::uint64_t slots = std::min<std::uint64_t>(ample.slots, ample.pins_at_once + more);
    config.host_budget = ample.need[1] - (ample.slots - slots) * ample.slot_bytes;
    config.device_budget = Engine::plan(config).need[0];
  }

  static std::string text_of(const EngineConfig& config) {
    std::ostringstream out;
    out << "param " << name_of(*config.param_home) << " (" << config.param_host_share << " in host memory), grad "
        << name_of(*config.grad_home) << ", optimizer " << name_of(*config.optimizer_home) << " ("
        << config.optimizer_host_share << "), master " << name_of(config.optimizer.master)
        << (config.accumulation == Accumulation::Vertical ? ", vertical" : "")
        << (config.overlap_update ? ", overlapped" : "") << (config.delay_update ? ", delayed" : "") << ", recomputes "
        << (config.recomputed_layers ? std::to_string(*config.recomputed_layers) : "what does not fit") << ", "
        << config.adam_threads << " threads" << (config.adversarial_streams ? ", late streams" : "")
        << (config.nvme_checksums ? ", checksums" : "") << ", slots of " << *config.slot_bytes / 1024 << " KiB in "
        << *config.host_budget / 1024 << " KiB, look-ahead "
        << (config.look_ahead_bytes ? std::to_string(*config.look_ahead_bytes / 1024) : "auto");
    return out.str();
  }

  // `tries`: whether the steps that cannot be taken are tried, or left out.
  Outcome run(const Training& training, const EngineConfig& config, bool tries) const {
    Outcome outcome;
    const std::unique_ptr<Engine> engine = Engine::create(config);
    std::size_t number = 0;
    for (const Step step : training.steps) {
      if (step != Step::Good && !tries) continue;
      const std::vector<data::Batch> batches = batches_of(step, number, training.micro_batches);
      const StepSummary summary = engine->train_step(batches, 1e-2);
      EXPECT_EQ(summary.skipped, step != Step::Good);
      if (step != Step::Good) continue;
      ++number;
      outcome.numbers.insert(outcome.numbers.end(), {summary.loss, summary.grad_norm});
    }
    outcome.state = engine->state();
    const std::filesystem::path folder = folder_.path() / "states";
    std::filesystem::create_directories(folder);
    engine->save_states(folder);
    const hf::TensorCatalog catalog = hf::TensorCatalog::open_folder(folder, "states");
    for (const auto& [name, tensor] : catalog.tensors()) {
      const bool master = name.starts_with("master.") || name.starts_with("param.") || name.starts_with("remainder.");
      if (master) continue;  // depends on the encoding, which may differ: compared as numbers below
      std::string& bytes = outcome.moments[name];
      bytes.resize(tensor.bytes);
      catalog.read(tensor, 0, std::as_writable_bytes(std::span(bytes)));
    }
    outcome.masters = test::tiny_parameter_bits(*engine);
    outcome.numbers.push_back(engine->evaluate(batches_of(Step::Good, 99, 1)[0]).loss_sum);
    return outcome;
  }

  test::TempDir folder_;
};

// NUM-27: among the others, steps that must change nothing, in every tier; the next good step is that of a run which
// never tried them.
TEST_F(EqualRuns, AnyWayToRunATrainingEndsWithTheBitsOfTheRunInMemory) {
  const std::uint64_t first_seed = test::test_seed(1);
  for (std::uint64_t seed = first_seed; seed < first_seed + 12; ++seed) {
    Random random(seed);
    const Training training = random_training(random);
    SCOPED_TRACE("STRATA_TEST_SEED=" + std::to_string(seed) + ": " + text(training));
    Outcome expected;
    ASSERT_NO_THROW(expected = run(training, plain(training), false));
    ASSERT_NE(expected.numbers.front(), expected.numbers[2]);
    ASSERT_EQ(expected.state.step, 4);
    for (int way = 0; way < 4; ++way) {
      EngineConfig config;
      ASSERT_NO_THROW(config = any_way(training, random));
      SCOPED_TRACE(text_of(config));
      const test::Watchdog watchdog(text(training) + "; " + text_of(config));
      Outcome actual;
      ASSERT_NO_THROW(actual = run(training, config, true));
      EXPECT_EQ(actual.numbers, expected.numbers);
      EXPECT_TRUE(actual.masters == expected.masters) << "masters differ";
      EXPECT_TRUE(actual.moments == expected.moments) << "moments differ";
      EXPECT_EQ(actual.state.step, 4);
      EXPECT_EQ(actual.state.skipped, static_cast<std::int64_t>(training.steps.size()) - 4);
    }
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace strata::engine
