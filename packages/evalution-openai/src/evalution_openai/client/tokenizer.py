"""A server's tokenizer over HTTP."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from evalution_core import EngineRuntimeError, EvalutionError, UnsupportedRequestError
from evalution_core.requests import Message
from evalution_enginekit import ChatTemplate
from evalution_enginekit.chat import SPECIAL_TOKENS
from evalution_enginekit.tokenizer import find_leading_ids
from evalution_openai.client.responses import read_ids, to_mapping

Post = Callable[[str, Mapping[str, Any]], Any]

_REMEMBERED = 4096
_UNKNOWN_VOCABULARY = 1 << 31
_SAMPLE = [
    {"role": role, "content": text}
    for role, text in (("user", "Hi there!\nSay it."), ("assistant", "It."), ("user", "And?"))
]
"""A chat of two turns: Llama 2's tokenizer adds a space after each special token but the first."""


class RemoteTokenizer:
    """The kit's tokenizer on `/tokenize` and `/detokenize` of vLLM, SGLang or Evalution.

    Recent texts are cached. Calls block until the server answers: don't use it on an event loop.

    Args:
        post: sends a body to a URL and returns the JSON answer.
        root: the URL that the routes are under.
        model: the model's name on the server.
        facts: the answer of `/tokenizer_info`; ids that it lacks are found by encoding the special
            tokens that it names.
        variables: variables of the chat template.
    """

    def __init__(
        self,
        post: Post,
        root: str,
        model: str | None,
        facts: Mapping[str, Any],
        variables: Mapping[str, Any] | None = None,
    ):
        self.source = "server"
        self.notice: str | None = None
        self._post = post
        self._root = root
        self._model = {"model": model} if model else {}
        self._variables = dict(variables or {})
        self._remember = lru_cache(_REMEMBERED)(self._encode)
        specials = {n: t for n in SPECIAL_TOKENS if isinstance(t := facts.get(n), str)}
        self.chat_template: ChatTemplate | None = self._local_template(facts, specials)
        if self.chat_template is None:
            self.chat_template = self._remote_template()
        self.bos_id = self._find_id(facts, "bos_id", specials.get("bos_token"))
        self.eos_id = self._find_id(facts, "eos_id", specials.get("eos_token"))
        leading = read_ids(facts.get("leading_ids"))
        if leading is None:
            leading = find_leading_ids(
                self._tokenize(prompt="a", add_special_tokens=True), self._encode("a")
            )
        self.leading_ids = tuple(leading)
        if self.bos_id is None and len(self.leading_ids) == 1:
            # vLLM doesn't report its special tokens by default; this one is known by encoding.
            (self.bos_id,) = self.leading_ids
        own = () if self.eos_id is None else (self.eos_id,)
        self.eos_ids = frozenset((*own, *(read_ids(facts.get("eos_ids")) or ())))
        known = (self.bos_id, *self.eos_ids)
        special = read_ids(facts.get("special_ids"))
        self.special_ids = frozenset(special or (i for i in known if i is not None))
        size: Any = facts.get("vocabulary_size")
        self.vocabulary_size = size if isinstance(size, int) else _UNKNOWN_VOCABULARY

    def encode(self, text: str) -> list[int]:
        return list(self._remember(text))

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        body = {"tokens": list(token_ids), "skip_special_tokens": skip_special_tokens}
        answer = self._post(f"{self._root}/detokenize", {**self._model, **body})
        text = answer.get("prompt", answer.get("text"))
        if not isinstance(text, str):
            raise EngineRuntimeError("/detokenize answered without a text in 'prompt' or 'text'")
        return text

    def _encode(self, text: str) -> list[int]:
        return self._tokenize(prompt=text, add_special_tokens=False)

    def _tokenize(self, **body: Any) -> list[int]:
        answer = self._post(f"{self._root}/tokenize", {**self._model, **body})
        token_ids = read_ids(answer.get("tokens"))
        if token_ids is None:
            raise EngineRuntimeError("/tokenize answered without a list of ids in 'tokens'")
        return token_ids

    def _local_template(
        self, facts: Mapping[str, Any], specials: Mapping[str, str]
    ) -> ChatTemplate | None:
        """Make the template that the server publishes, with the variables bound there."""
        source = facts.get("chat_template")
        if not isinstance(source, str):
            return None
        bound = to_mapping(facts.get("chat_template_kwargs"))
        tools = facts.get("tool_chat_template")
        with_tools = tools if isinstance(tools, str) else None
        template = ChatTemplate(source, _read_special_tokens(facts, specials), bound, with_tools)
        return template.with_variables(self._variables) if self._variables else template

    def _remote_template(self) -> RemoteTemplate | None:
        """Make a template that the server renders; None if it refuses to, or `_render` does."""
        template = RemoteTemplate(self._render, self._variables)
        try:
            template.render(_SAMPLE)
        except EvalutionError:
            return None
        return template

    def _render(self, messages: Sequence[Message], add_generation_prompt: bool) -> str:
        variables = {"chat_template_kwargs": self._variables} if self._variables else {}
        token_ids = self._tokenize(
            messages=[dict(message) for message in messages],
            add_generation_prompt=add_generation_prompt,
            **variables,
        )
        if not token_ids:
            raise EngineRuntimeError("/tokenize rendered the messages to no ids")
        text = self.decode(token_ids, skip_special_tokens=False)
        if self.encode(text) != token_ids:  # a generation asks for the same next: it is cached
            raise UnsupportedRequestError(
                "the server's chat template renders these messages to ids whose text encodes to "
                "others, so they can't be sent as they are; set tokenizer_path, so that chats are "
                "rendered here, or api='chat', so that the server does all of it"
            )
        return text

    def _find_id(self, facts: Mapping[str, Any], name: str, text: str | None) -> int | None:
        known: Any = facts.get(name)
        if isinstance(known, int) or text is None:
            return known if isinstance(known, int) else None
        found = self._encode(text)
        return found[0] if len(found) == 1 else None


class RemoteTemplate(ChatTemplate):
    """A chat template that only the server has: it renders to ids, which are decoded to text.

    Its `source` is empty; `render` sends `variables` along.
    """

    def __init__(
        self, render: Callable[[Sequence[Message], bool], str], variables: Mapping[str, Any]
    ):
        super().__init__("", variables=variables)
        self._served = render

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        """Return the prompt text with special tokens spelled out.

        Raises:
            UnsupportedRequestError: there are tools.
            EvalutionError: the server refuses the messages, or has no template.
        """
        if tools:
            raise UnsupportedRequestError("the server's chat template is not given tools")
        return self._served(messages, add_generation_prompt)


def _read_special_tokens(
    facts: Mapping[str, Any], specials: Mapping[str, str]
) -> Mapping[str, str]:
    """Return the special tokens that the template prints; `specials` if the server lists none."""
    if not isinstance(facts.get("special_tokens"), Mapping):
        return specials
    tokens = to_mapping(facts["special_tokens"])
    return {name: text for name, text in tokens.items() if isinstance(text, str)}
