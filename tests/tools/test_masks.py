"""Token ids and masks, checked token by token against the tokenizer."""

import json
import shutil

import pytest

BOS, EOS = 0, 1
CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Which parameter?"},
    {"role": "assistant", "content": "The first one."},
    {"role": "user", "content": "And then?"},
    {"role": "assistant", "content": "Then the \u00e9t\u00e9 one."},
]


def trained_text(tokenizer, sample):
    tokens, mask = sample
    return tokenizer.decode([token for token, trained in zip(tokens, mask) if trained])


def line(**record):
    return json.dumps(record) + "\n"


def model_with(model_folder, folder, **changes):
    """A copy of the model folder with keys of tokenizer_config.json changed (None removes the template)."""
    shutil.copytree(model_folder, folder)
    if "chat_template" in changes:
        (folder / "chat_template.jinja").unlink()
        if changes["chat_template"] is not None:
            (folder / "chat_template.jinja").write_text(changes["chat_template"])
    return folder


def test_a_text_is_trained_whole_and_ends_with_eos(prepare, tokenizer):
    result = prepare(line(text="The cat sat."))

    tokens = tokenizer("The cat sat.")["input_ids"] + [EOS]
    assert result.samples == [(tokens, [0] + [1] * (len(tokens) - 1))]
    assert result.summary["trained_tokens"] == len(tokens) - 1


def test_texts_are_joined_by_eos_and_cut_into_blocks_without_padding(prepare, tokenizer):
    texts = ["The cat sat on the mat.", "A dog.", "Birds fly over the house and away."]

    result = prepare("".join(line(text=text) for text in texts), "--max-tokens", "8")

    stream = sum((tokenizer(text)["input_ids"] + [EOS] for text in texts), [])
    blocks = [stream[i : i + 8] for i in range(0, len(stream), 8)]
    assert [tokens for tokens, _ in result.samples] == [block for block in blocks if len(block) > 1]
    assert all(mask == [0] + [1] * (len(mask) - 1) for _, mask in result.samples)


def test_a_text_file_is_one_document(prepare, tokenizer):
    result = prepare("One line.\n\nAnother line.\n", name="data.txt")

    assert [tokens for tokens, _ in result.samples] == [tokenizer("One line.\n\nAnother line.\n")["input_ids"] + [EOS]]


def test_an_eos_that_the_text_brings_is_not_doubled(prepare):
    tokens, _ = prepare(line(text="The end.<eos>")).samples[0]

    assert tokens.count(EOS) == 1 and tokens[-1] == EOS


def test_a_long_text_in_pieces_gives_the_tokens_of_the_whole(tokenizer):
    from data_encoding import pieces_of

    text = "".join(f"Line {i} of the text\n  indented, def f(x):\n\n" for i in range(200)) + "end"

    pieces = list(pieces_of(text, 97))

    assert len(pieces) > 50 and "".join(pieces) == text
    assert sum((tokenizer(piece)["input_ids"] for piece in pieces), []) == tokenizer(text)["input_ids"]


def test_only_the_completion_and_eos_are_trained(prepare, tokenizer):
    result = prepare(line(prompt="What is the parameter?", completion=" It is a value."))

    tokens, mask = result.samples[0]
    prompt = tokenizer("What is the parameter?")["input_ids"]
    assert tokens == tokenizer("What is the parameter? It is a value.")["input_ids"] + [EOS]
    assert tokens[: len(prompt)] == prompt
    assert mask == [0] * len(prompt) + [1] * (len(tokens) - len(prompt))


def test_only_the_turns_of_the_assistant_are_trained_each_with_eos(prepare, tokenizer):
    result = prepare(line(messages=CHAT))

    tokens, mask = result.samples[0]
    text = tokenizer.apply_chat_template(CHAT, tokenize=False)
    assert tokens == tokenizer(text, add_special_tokens=False)["input_ids"]
    assert trained_text(tokenizer, (tokens, mask)) == "The first one.<eos>Then the \u00e9t\u00e9 one.<eos>"
    # The line break that the template writes after a turn is not the assistant's.
    assert tokenizer.decode(tokens[-1:]) == "\n" and mask[-1] == 0


def test_the_template_sets_bos_once(prepare):
    tokens, _ = prepare(line(messages=CHAT)).samples[0]

    assert tokens[0] == BOS and tokens.count(BOS) == 1


def test_a_tokenizer_that_sets_bos_sets_it_once(prepare, model_folder, tmp_path):
    from tokenizers.processors import TemplateProcessing
    from transformers import AutoTokenizer

    folder = tmp_path / "bos"
    shutil.copytree(model_folder, folder)
    adds_bos = AutoTokenizer.from_pretrained(folder)
    adds_bos.backend_tokenizer.post_processor = TemplateProcessing(
        single="<bos> $A", pair="<bos> $A $B", special_tokens=[("<bos>", BOS)]
    )
    adds_bos.save_pretrained(folder)
    assert AutoTokenizer.from_pretrained(folder)("x")["input_ids"][0] == BOS

    texts = [{"text": "A word."}, {"text": "<bos>A word."}]
    for record in [*texts, {"messages": CHAT}, {"prompt": "A", "completion": "B"}]:
        tokens, _ = prepare(json.dumps(record), model=folder).samples[0]
        assert tokens[0] == BOS and tokens.count(BOS) == 1, record


def test_generation_tags_decide_when_the_template_has_them(prepare, model_folder, tmp_path, tokenizer):
    template = (
        "{% for m in messages %}{{ m['role'] }}: {% if m['role'] == 'assistant' %}{% generation %}"
        "{{ m['content'] }}{{ eos_token }}{% endgeneration %}{% else %}{{ m['content'] }}{% endif %}\n{% endfor %}"
    )

    result = prepare(line(messages=CHAT), model=model_with(model_folder, tmp_path / "tags", chat_template=template))

    assert trained_text(tokenizer, result.samples[0]) == "The first one.<eos>Then the \u00e9t\u00e9 one.<eos>"


def test_a_template_that_writes_the_last_turn_differently_keeps_its_eos(prepare, model_folder, tmp_path, tokenizer):
    # As Qwen3 does with its thinking part: rendered alone, each turn is the last one.
    template = (
        "{% for m in messages %}[{{ m['role'] }}]\n"
        "{% if m['role'] == 'assistant' and loop.last %}<think></think>{% endif %}{{ m['content'] }}{{ eos_token }}\n"
        "{% endfor %}{% if add_generation_prompt %}[assistant]\n{% endif %}"
    )

    result = prepare(line(messages=CHAT), model=model_with(model_folder, tmp_path / "think", chat_template=template))

    expected = "The first one.<eos><think></think>Then the \u00e9t\u00e9 one.<eos>"
    assert trained_text(tokenizer, result.samples[0]) == expected


def test_a_template_that_rewrites_earlier_messages_is_refused(prepare, model_folder, tmp_path):
    template = "{{ messages | length }}{% for m in messages %}{{ m['content'] }}{% endfor %}"

    result = prepare(line(messages=CHAT), model=model_with(model_folder, tmp_path / "rewrite", chat_template=template))

    assert result.code == 4 and "rewrites the messages" in result.error and "{% generation %}" in result.error


def test_what_a_template_refuses_is_reported_with_its_place(prepare, model_folder, tmp_path):
    template = "{{ raise_exception('roles must alternate') }}"

    result = prepare(line(messages=CHAT), model=model_with(model_folder, tmp_path / "refuse", chat_template=template))

    assert result.code == 4 and "data.jsonl:1" in result.error and "roles must alternate" in result.error


def test_a_tokenizer_without_a_template_refuses_chats(prepare, model_folder, tmp_path):
    result = prepare(line(messages=CHAT), model=model_with(model_folder, tmp_path / "base", chat_template=None))

    assert result.code == 4 and "chat template" in result.error


def test_sharegpt_and_alpaca_are_chats(prepare):
    turns = [{"from": "human", "value": "Say\nhello"}, {"from": "gpt", "value": "Hello."}]
    messages = [{"role": "user", "content": "Say\nhello"}, {"role": "assistant", "content": "Hello."}]

    expected = prepare(line(messages=messages)).samples

    assert prepare(line(conversations=turns)).samples == expected
    assert prepare(line(instruction="Say", input="hello", output="Hello.")).samples == expected


def test_a_conversational_completion_trains_only_what_answers_the_prompt(prepare, tokenizer):
    result = prepare(line(prompt=CHAT[:4], completion=CHAT[4:]))

    assert result.samples[0][0] == prepare(line(messages=CHAT)).samples[0][0]
    assert trained_text(tokenizer, result.samples[0]) == "Then the \u00e9t\u00e9 one.<eos>"


def test_pre_tokenized_records_are_taken_as_they_are(prepare):
    result = prepare(
        line(input_ids=[5, 6, 7, 8], labels=[-100, -100, 7, 8])
        + line(input_ids=[9, 10])
        + line(input_ids=[2, 2, 5, 6], attention_mask=[0, 0, 1, 1], labels=[-100, -100, 5, 6])
    )

    assert result.samples == [([5, 6, 7, 8], [0, 0, 1, 1]), ([9, 10], [0, 1]), ([5, 6], [0, 1])]


@pytest.mark.parametrize(
    ("record", "what"),
    [
        ({"input_ids": [1, 2], "labels": [1]}, "labels is not a list of 2 numbers"),
        ({"input_ids": [1, 2], "labels": [2, -100]}, "not shifted"),
        ({"input_ids": [1, -2]}, "whole numbers from 0"),
        ({"input_ids": "12"}, "whole numbers from 0"),
        ({"messages": []}, "not a list of messages"),
        ({"messages": [{"role": "user", "content": "x"}]}, "no message of the assistant"),
        ({"messages": [{"content": "x"}]}, "message 1 has no role"),
        ({"messages": [{"role": "assistant", "content": 3}]}, "content of message 1 is not a string"),
        ({"text": None}, "text is not a string"),
        ({"prompt": "x", "completion": 3}, "completion is not a string"),
    ],
)
def test_wrong_fields_are_refused_by_name(prepare, record, what):
    result = prepare(line(text="fine") + json.dumps(record))

    assert result.code == 4 and "data.jsonl:2" in result.error and what in result.error


def test_too_long_samples_are_cut_and_counted(prepare):
    result = prepare(line(input_ids=list(range(2, 22))) + line(input_ids=[2, 3]), "--max-tokens", "8")

    assert result.samples[0][0] == list(range(2, 10))
    assert (result.summary["cut_samples"], result.summary["cut_tokens"]) == (1, 12)


def test_samples_without_a_target_are_left_out_and_counted(prepare):
    beyond = line(input_ids=[2, 3, 4, 5], labels=[-100, -100, -100, 5])

    result = prepare(beyond + line(input_ids=[6, 7]), "--max-tokens", "3")
    none = prepare(beyond, "--max-tokens", "3")

    assert result.samples == [([6, 7], [0, 1])] and result.summary["untrained_samples"] == 1
    assert none.code == 4 and "no samples with a token to train on" in none.error


def test_an_id_without_an_embedding_row_is_refused_with_both_numbers(prepare):
    assert prepare(line(input_ids=[1, 1002])).code == 0
    result = prepare(line(input_ids=[1, 2]) + line(input_ids=[1, 1003]))

    assert result.code == 4 and "data.jsonl:2" in result.error
    assert "1003" in result.error and "1003 embedding rows" in result.error


def test_an_added_token_without_a_row_is_refused(prepare, model_folder, tmp_path):
    folder = tmp_path / "added"
    shutil.copytree(model_folder, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "vocab_size": 300}))

    result = prepare(line(text="the parameter of the model is in the folder"), model=folder)

    assert result.code == 4 and "300 embedding rows" in result.error
