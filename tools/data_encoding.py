"""Turns records into token ids with a mask of the tokens that are targets of the loss."""

import re
from dataclasses import dataclass
from pathlib import Path

from data_records import DataProblem

KINDS = ("text", "completion", "chat", "tokens")
ROLES = {"human": "user", "gpt": "assistant", "model": "assistant", "observation": "tool", "function_response": "tool"}
GENERATION_TAG = re.compile(r"\{%[-+]?\s*generation\s*[-+]?%\}")
# Longer texts go to the tokenizer in pieces: it needs about a hundred bytes a character.
PIECE_CHARACTERS = 1_000_000


@dataclass
class Encoded:
    tokens: list
    mask: list


def kind_of(record):
    """What a record is, by its keys."""
    keys = record.value.keys()
    for kind, needed in (
        ("tokens", {"input_ids"}),
        ("chat", {"messages"}),
        ("chat", {"conversations"}),
        ("completion", {"prompt", "completion"}),
        ("chat", {"instruction", "output"}),
        ("text", {"text"}),
    ):
        if needed <= keys:
            return kind
    raise DataProblem(
        f"{record.where}: none of text, prompt + completion, messages, conversations, instruction + output or "
        f"input_ids among its keys: {', '.join(sorted(keys)) or '(none)'}"
    )


def text_of(value, name, where):
    """A string that can be encoded; JSON escapes may hide half of a surrogate pair."""
    if not isinstance(value, str):
        raise DataProblem(f"{where}: {name} is not a string")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        lone = f"\\u{ord(value[error.start]):04x}"
        raise DataProblem(f"{where}: {name} holds a lone surrogate {lone} at character {error.start}") from None
    return value


def field_of(record, name):
    if name not in record.value:
        raise DataProblem(f"{record.where}: no {name}")
    return text_of(record.value[name], name, record.where)


def messages_of(record):
    """[{role, content, ...}] of OpenAI messages, ShareGPT conversations or an Alpaca instruction."""
    value = record.value
    if "messages" in value:
        return _checked_messages(value["messages"], record.where)
    if "conversations" in value:
        turns = value["conversations"]
        if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
            raise DataProblem(f"{record.where}: conversations is not a list of objects")
        messages = [{"role": t.get("from", t.get("role")), "content": t.get("value", t.get("content"))} for t in turns]
        if value.get("system"):
            messages.insert(0, {"role": "system", "content": value["system"]})
        return _checked_messages(messages, record.where)
    user = field_of(record, "instruction")
    if value.get("input"):
        user += "\n" + field_of(record, "input")
    messages = [{"role": "system", "content": value["system"]}] if value.get("system") else []
    messages += [{"role": "user", "content": user}, {"role": "assistant", "content": field_of(record, "output")}]
    return _checked_messages(messages, record.where)


def _checked_messages(messages, where):
    if not isinstance(messages, list) or not messages:
        raise DataProblem(f"{where}: messages is not a list of messages")
    checked = []
    for number, message in enumerate(messages, start=1):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise DataProblem(f"{where}: message {number} has no role")
        role = ROLES.get(message["role"], message["role"])
        # A message that only calls tools has no content; templates read tool_calls.
        if message.get("content") is not None or "tool_calls" not in message:
            text_of(message.get("content"), f"content of message {number}", where)
        checked.append({**message, "role": role})
    if not any(message["role"] == "assistant" for message in checked):
        raise DataProblem(f"{where}: no message of the assistant, so nothing to learn")
    return checked


def pieces_of(text, limit=PIECE_CHARACTERS):
    """Cuts a long text where pre-tokenizers cut too: before a word that follows a line break, else before a space."""
    start = 0
    while len(text) - start > limit:
        cut = None
        for match in re.finditer(r"(?<=\n)(?=\S)|(?<=\S)(?= \S)", text[start : start + limit]):
            cut = match.start() if match.start() > 0 else cut
        cut = cut or limit
        yield text[start : start + cut]
        start += cut
    yield text[start:]


class Encoder:
    """Knows one tokenizer. `max_tokens` is the longest sample."""

    def __init__(self, tokenizer, eos_ids, max_tokens):
        self.tokenizer = tokenizer
        self.max_tokens = max_tokens
        self.eos_ids = set(eos_ids)
        self.eos = tokenizer.eos_token_id
        self.template = tokenizer.chat_template
        self.tags = isinstance(self.template, str) and GENERATION_TAG.search(self.template) is not None

    def _begin_once(self, tokens):
        """Without the first BOS where both the text and the tokenizer brought one. `tokens` are (id, offsets) pairs."""
        twice = len(tokens) > 1 and tokens[0][0] == tokens[1][0] == self.tokenizer.bos_token_id
        return tokens[1:] if twice else tokens

    def _end_once(self, tokens):
        """With exactly one EOS at the end, whether the text, the tokenizer, both or neither brought it."""
        if self.eos is None:
            return tokens
        while tokens and tokens[-1][0] == self.eos:
            tokens = tokens[:-1]
        return [*tokens, (self.eos, None)]

    def document(self, text):
        """Yields the tokens of one text in pieces: BOS once where the tokenizer sets one, EOS at the end."""
        pieces = list(pieces_of(text))
        for number, piece in enumerate(pieces):
            encoded = self.tokenizer(piece, add_special_tokens=number == 0, verbose=False)["input_ids"]
            tokens = [(token, None) for token in encoded]
            if number == 0:
                tokens = self._begin_once(tokens)
            if number == len(pieces) - 1:
                tokens = self._end_once(tokens)
            elif number == 0 and tokens[-1][0] == self.eos:
                # The tokenizer ends every text with EOS; this one goes on.
                tokens = tokens[:-1]
            yield [token for token, _ in tokens]

    def completion(self, prompt, completion):
        """Prompt and completion tokenized as one text; trained from the first token that holds a character of the
        completion, EOS included."""
        encoded = self.tokenizer(prompt + completion, return_offsets_mapping=True, verbose=False)
        pairs = list(zip(encoded["input_ids"], encoded["offset_mapping"]))
        pairs = self._end_once(self._begin_once(pairs))
        mask = [offsets is None or offsets[1] > len(prompt) for _, offsets in pairs]
        return Encoded([token for token, _ in pairs], mask)

    def chat(self, messages, where, tools=None, first_trained=0):
        """Trained on the assistant's turns from message `first_trained` on, each with the token that ends it."""
        if not self.template:
            raise DataProblem(
                f"{where}: chat records need a chat template and this tokenizer has none; use an instruct model's "
                "tokenizer, add chat_template.jinja to the model folder, or use prompt + completion records"
            )
        if self.tags and first_trained == 0:
            encoded = self.tokenizer.apply_chat_template(
                messages, tools=tools, return_dict=True, return_assistant_tokens_mask=True
            )
            return Encoded(list(encoded["input_ids"]), [bool(trained) for trained in encoded["assistant_masks"]])
        full = self._render(messages, tools, where)
        spans = [
            self._turn(messages, i, full, tools, where)
            for i in range(first_trained, len(messages))
            if messages[i]["role"] == "assistant"
        ]
        # The template has set BOS already.
        encoded = self.tokenizer(full, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        tokens = encoded["input_ids"]
        mask = [False] * len(tokens)
        for begin, end in spans:
            self._mark(tokens, encoded["offset_mapping"], mask, begin, end)
        return Encoded(tokens, mask)

    def _render(self, messages, tools, where, generate=False):
        try:
            return self.tokenizer.apply_chat_template(
                messages, tools=tools, tokenize=False, add_generation_prompt=generate
            )
        except Exception as error:  # the template raises what it likes
            raise DataProblem(f"{where}: the chat template refuses the conversation: {error}") from None

    def _turn(self, messages, i, full, tools, where):
        """Characters [begin, end) of turn i: what rendering with the turn adds to the prompt for it. `end` is None
        where the template writes a last turn in another way than an earlier one; it then ends with its first EOS."""
        before = self._render(messages[:i], tools, where, generate=True)
        if not full.startswith(before):
            # Some templates have no generation prompt, or one that is longer than the turn's real beginning.
            before = self._render(messages[:i], tools, where) if i > 0 else ""
        if not full.startswith(before):
            raise DataProblem(
                f"{where}: the chat template rewrites the messages before message {i + 1}, so the assistant's part "
                "cannot be told; mark it in the template with {% generation %}"
            )
        after = self._render(messages[: i + 1], tools, where)
        return len(before), len(after) if full.startswith(after) else None

    def _mark(self, tokens, offsets, mask, begin, end):
        stop = offsets[-1][1] if end is None else end
        inside = [k for k, (first, last) in enumerate(offsets) if first < last and last > begin and first < stop]
        eos = [k for k in inside if tokens[k] in self.eos_ids]
        # What a template writes after the end of the turn (a line break) is not the assistant's.
        last_trained = (eos[0] if end is None else eos[-1]) if eos else len(tokens)
        for k in inside:
            mask[k] = mask[k] or k <= last_trained

    def tokens(self, record):
        """input_ids with labels as Hugging Face has them: unshifted, -100 where not trained."""
        value, where = record.value, record.where
        ids = value["input_ids"]
        if not isinstance(ids, list) or not all(type(i) is int and i >= 0 for i in ids):
            raise DataProblem(f"{where}: input_ids is not a list of whole numbers from 0")
        labels = value.get("labels", ids)
        attended = value.get("attention_mask", [1] * len(ids))
        for name, other in (("labels", labels), ("attention_mask", attended)):
            if not isinstance(other, list) or len(other) != len(ids):
                raise DataProblem(f"{where}: {name} is not a list of {len(ids)} numbers, as input_ids is")
        for k, (token, label) in enumerate(zip(ids, labels)):
            if label not in (token, -100):
                raise DataProblem(f"{where}: label {k} is {label}; expected the token {token} or -100 (not shifted)")
        kept = [k for k in range(len(ids)) if attended[k]]
        return Encoded([ids[k] for k in kept], [labels[k] != -100 for k in kept])


def load_tokenizer(folder):
    """The tokenizer of a model folder; a DataProblem with the remedy when it has none."""
    folder = Path(folder)
    names = {path.name for path in folder.iterdir()}
    if not names & {"tokenizer.json", "tokenizer.model", "vocab.json", "spiece.model"}:
        raise DataProblem(f"{folder}: no tokenizer.json; copy the tokenizer files of the model into the folder")
    from transformers import AutoTokenizer
    from transformers.utils import logging

    logging.set_verbosity_error()
    remedy = (
        "make a tokenizer.json where the model's own library is installed: "
        "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
    )
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # transformers raises many kinds for unreadable tokenizer files
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise DataProblem(f"{folder}: the tokenizer cannot be loaded ({reason}); {remedy}") from None
    if not tokenizer.is_fast:
        raise DataProblem(f"{folder}: this tokenizer does not tell character offsets; {remedy}")
    return tokenizer
