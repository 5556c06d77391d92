"""Question: do narrow optimizer states train as well as fp32 ones, beside what another seed changes?

Two tasks, each with several encodings and seeds: SmolLM2-135M fine-tuned on plays, and a Llama of 10.8 million parameters from
scratch. A seed decides the order of the data, the stochastic rounding and, from scratch, the initial weights; the runs of one seed
differ in the encoding alone. What is finished is kept in --work, so that a call that was stopped goes on where it was.

    nice -n 19 .venv/bin/python bench/convergence.py                     # an hour or more; curves into docs/convergence.json
    .cache/bench-venv/bin/python bench/convergence_report.py             # PNGs and the table of docs/convergence.md out of it

With --steps or other --seeds it is a trial: name --work and --out too.
"""

import argparse
import concurrent.futures
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STATES = ("fp32", "remainder+bf16", "remainder+8bit", "fp32+bf16", "fp32+8bit", "remainder+fp32")
# Read for training, in this order; Macbeth is held out.
PLAYS = ("hamlet", "lear", "othello", "romeo_and_juliet", "julius_caesar", "tempest", "twelfth_night", "as_you_like_it",
         "much_ado_about_nothing", "richard_iii", "henry_v", "winters_tale", "merchant_of_venice", "measure_for_measure")
HELD_OUT = "macbeth"
TASKS = {
    "smollm2": {"steps": 200, "batch": 2, "tokens": 64, "rate": 2e-5, "warmup": 10, "eval_steps": 40,
                "held_out_characters": 12_000, "plays": 1},
    "10m": {"steps": 2000, "batch": 4, "tokens": 64, "rate": 1e-3, "warmup": 100, "eval_steps": 200,
            "held_out_characters": 40_000, "plays": len(PLAYS)},
}
VOCABULARY = 2048
SHAPE = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": VOCABULARY, "hidden_size": 320,
    "intermediate_size": 896, "num_hidden_layers": 8, "num_attention_heads": 5, "num_key_value_heads": 5,
    "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": True,
    "torch_dtype": "bfloat16", "bos_token_id": 0, "eos_token_id": 0,
}


def call(words, **more):
    subprocess.run([str(word) for word in words], check=True, **more)


def write_texts(folder, task):
    """The texts of a task: training and held out."""
    plays = PLAYS[: task["plays"]]
    wanted = [word for play in (*plays, HELD_OUT) for word in ("--play", play, folder / f"{play}.txt")]
    call([sys.executable, ROOT / "tools/shakespeare_text.py", *wanted])
    texts = {play: (folder / f"{play}.txt").read_text(encoding="utf-8") for play in (*plays, HELD_OUT)}
    (folder / "train.txt").write_text("\n\n".join(texts[play] for play in plays), encoding="utf-8")
    (folder / "held-out.txt").write_text(texts[HELD_OUT][: task["held_out_characters"]], encoding="utf-8")


def write_tokenizer(folder):
    """A small byte-level tokenizer, so that the head stays a small part of the model."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train([str(folder / "train.txt")], trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=["<eos>"], initial_alphabet=alphabet, show_progress=False))
    tokenizer.save(str(folder / "tokenizer.json"))
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<eos>", "eos_token": "<eos>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(about), encoding="utf-8")


def prepare(options, name, task):
    """Makes what the runs of a task read: {seed: model folder}, and two token files in the task's folder."""
    folder = options.work / name
    folder.mkdir(parents=True, exist_ok=True)
    write_texts(folder, task)
    if name == "smollm2":
        call([sys.executable, ROOT / "tools/gguf_to_hf.py", "--out", options.smollm2])
        models = {seed: options.smollm2 for seed in options.seeds}
    else:
        write_tokenizer(folder)
        (folder / "config.json").write_text(json.dumps(SHAPE, indent=2), encoding="utf-8")
        models = {seed: folder / f"model-seed{seed}" for seed in options.seeds}
        for seed, model in models.items():
            shutil.rmtree(model, ignore_errors=True)
            call([options.strata, "init", "--config", folder / "config.json", "--out", model, "--seed", seed])
            for file in ("tokenizer.json", "tokenizer_config.json"):
                shutil.copy(folder / file, model)
    for text in ("train", "held-out"):
        call([sys.executable, ROOT / "tools/prepare_data.py", "--model", next(iter(models.values())), "--type", "text", "--data",
              folder / f"{text}.txt", "--max-tokens", task["tokens"], "--out", folder / f"{text}.tok"])
    return models


def encodings(states):
    """Master and moments of a name: fp32 stands for both."""
    master, _, moments = states.partition("+")
    return master, moments or master


def train_command(options, name, task, model, states, seed, out):
    master, moments = encodings(states)
    folder = options.work / name
    return [str(word) for word in (
        options.strata, "train", "--model-name-or-path", model, "--datasets", folder / "train.tok", "--val-datasets",
        folder / "held-out.tok", "--output-dir", out, "--overwrite-output-dir", "true", "--max-steps", task["steps"],
        "--seed", seed, "--learning-rate", task["rate"], "--lr-scheduler-type", "cosine", "--warmup-steps", task["warmup"],
        "--max-seq-length", task["tokens"], "--per-device-train-batch-size", task["batch"], "--per-device-eval-batch-size",
        task["batch"], "--eval-steps", task["eval_steps"], "--save-strategy", "no",
        "--strata.optimizer-states.master", master, "--strata.optimizer-states.moments", moments,
        "--strata.compute-threads", options.threads, "--strata.adam-threads", options.threads)]


def run(options, name, task, model, states, seed):
    """Trains once, unless the same command has ended well before. Returns its name."""
    out = options.work / name / f"{states}-seed{seed}"
    command = train_command(options, name, task, model, states, seed, out)
    done = out / "done.json"
    if done.exists() and json.loads(done.read_text(encoding="utf-8"))["command"][1:] == command[1:]:
        return f"{out}: was there"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    with open(out / "log.txt", "w", encoding="utf-8") as log:
        environment = {**os.environ, "OMP_NUM_THREADS": str(options.threads)}
        if subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, env=environment).returncode != 0:
            raise RuntimeError(f"{out}/log.txt says why the run failed")
    done.write_text(json.dumps({"command": command}), encoding="utf-8")
    return f"{out}: done"


def curves_of(folder):
    """[[step, held-out loss], ...] and the mean training loss of the last tenth of the run."""
    with open(folder / "metrics.jsonl", encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    held_out = [[line["step"], line["eval_loss"]] for line in lines if "eval_loss" in line]
    losses = [line["loss"] for line in lines if "loss" in line]
    last = losses[-max(1, len(losses) // 10):]
    return {"held_out": held_out, "last_training_loss": sum(last) / len(last), "steps": len(losses)}


def collect(options, tasks):
    """One object of everything that is finished."""
    out = {}
    for name, task in tasks.items():
        about = {key: value for key, value in task.items() if key != "plays"}
        out[name] = {"settings": about, "runs": []}
        for states in options.states:
            for seed in options.seeds:
                folder = options.work / name / f"{states}-seed{seed}"
                if (folder / "done.json").exists():
                    out[name]["runs"].append({"states": states, "seed": seed, **curves_of(folder)})
    return out


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", action="append", choices=TASKS, help="again for another (default both)")
    parser.add_argument("--steps", type=int, help="instead of 200 and 2000")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--states", nargs="+", choices=STATES, default=list(STATES[:3]), help="master+moments")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "convergence.json", help="the curves")
    parser.add_argument("--work", type=Path, default=ROOT / ".cache" / "convergence", help="for models, texts and finished runs")
    parser.add_argument("--smollm2", type=Path, default=ROOT / ".cache" / "smollm2", help="fetched where it is missing")
    parser.add_argument("--strata", type=Path, default=ROOT / "build" / "release" / "bin" / "strata", help="the program")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="runs at a time (default: CPUs)")
    parser.add_argument("--threads", type=int, default=1, help="of one run")
    parser.add_argument("--collect-only", action="store_true", help="train nothing: write what is finished")
    return parser.parse_args()


def main():
    options = arguments()
    tasks = {name: dict(TASKS[name]) for name in options.task or TASKS}
    for task in tasks.values():
        if options.steps:
            task["steps"] = options.steps
            task["warmup"] = min(task["warmup"], options.steps // 2)
            task["eval_steps"] = max(1, options.steps // 4)
    if not options.collect_only:
        jobs = []
        for name, task in tasks.items():
            models = prepare(options, name, task)
            # A whole comparison of one seed before the next one.
            jobs += [(name, task, models[seed], states, seed) for seed in options.seeds for states in options.states]
        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            for message in pool.map(lambda job: run(options, *job), jobs):
                print(message, flush=True)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(collect(options, tasks)) + "\n", encoding="utf-8")
    print(options.out)


if __name__ == "__main__":
    main()
