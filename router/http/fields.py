"""The request fields each endpoint knows (S3), with the type each must have; and those no client may ever set.

Sources: OpenAI's API reference for chat, text completions, responses and embeddings; Anthropic's for messages; vLLM
0.32's request models of the five endpoints, with the older `guided_*` spellings.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

N_MAX = 8
PROMPTS_MAX = 16
INPUTS_MAX = 2048
"""Texts of one embeddings request, as OpenAI allows: they cost prefill only, and clients send batches."""
GRAMMAR_BYTES_MAX = 64 * 1024
"""Bound for each field that a worker compiles into an automaton: regex, grammar, JSON schema."""
STOPS_MAX = 16
LIST_MAX = 4096

NEVER_FORWARDED = frozenset((
    "cache_salt", "kv_transfer_params", "ec_transfer_params", "mm_hashes", "mm_payload", "return_mm_kwargs",
    "prompt_embeds", "request_id", "session_id", "priority", "vllm_xargs", "mm_processor_kwargs",
    "media_io_kwargs", "extra_body", "mcp_servers", "container", "previous_response_id", "enable_response_messages",
))  # fmt: skip
"""Salts, identities and levers on the worker's memory: dropped whatever the namespace's policy says (S2).

`mcp_servers` and `container` name services that the worker would call; `previous_response_id` names another request's
conversation; `enable_response_messages` puts the client's own JSON behind the usage block, where usage is looked for.
"""

COMPILED = frozenset((
    "response_format", "structured_outputs", "guided_json", "guided_regex", "guided_grammar", "guided_choice",
    "guided_whitespace_pattern", "structural_tag", "text", "output_config",
))  # fmt: skip

Model = Annotated[str, Meta(min_length=1, max_length=512)]
Number = Annotated[float, Meta(ge=-1e9, le=1e9)] | None
Count = Annotated[int, Meta(ge=0, le=100_000_000)] | None
Int = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None
Flag = bool | None
_Text = str | None
_User = Annotated[str, Meta(max_length=1024)] | None
"""Answers of responses repeat it behind their usage, which is looked for in the answer's last 4 KB."""
_N = Annotated[int, Meta(ge=1, le=N_MAX)] | None
_Ids = Annotated[list[int], Meta(max_length=LIST_MAX)] | None
_Words = Annotated[list[str], Meta(max_length=LIST_MAX)] | None
_Stop = str | Annotated[list[str], Meta(max_length=STOPS_MAX)] | None
_Stops = Annotated[list[str], Meta(max_length=STOPS_MAX)] | None
_Map = dict[str, Any] | None
_Anything = Any

_SHARED: dict[str, Any] = {
    "model": Model,
    "frequency_penalty": Number, "presence_penalty": Number, "repetition_penalty": Number,
    "length_penalty": Number, "temperature": Number, "top_p": Number, "min_p": Number, "top_k": Int,
    "logit_bias": dict[str, float] | None, "n": _N, "seed": Int, "max_tokens": Count, "min_tokens": Count,
    "stop": _Stop, "stop_token_ids": _Ids, "allowed_token_ids": _Ids, "logprob_token_ids": _Ids, "bad_words": _Words,
    "stream": Flag, "stream_options": _Map, "stream_interval": Count, "user": _Text, "metadata": _Map,
    "use_beam_search": Flag, "include_stop_str_in_output": Flag, "ignore_eos": Flag,
    "skip_special_tokens": Flag, "spaces_between_special_tokens": Flag, "add_special_tokens": Flag,
    "truncate_prompt_tokens": Int, "truncation_side": _Text, "prompt_logprobs": Int, "echo": Flag,
    "response_format": _Map, "structured_outputs": _Map, "structural_tag": _Text,
    "guided_json": _Anything, "guided_regex": _Text, "guided_choice": _Words, "guided_grammar": _Text,
    "guided_decoding_backend": _Text, "guided_whitespace_pattern": _Text,
    "return_tokens_as_token_ids": Flag, "return_token_ids": Flag, "return_token_offsets": Flag,
    "routed_experts_prompt_start": Count, "repetition_detection": _Map, "thinking_token_budget": Int,
    "watermarking": Flag, "service_tier": _Text, "store": Flag, "safety_identifier": _Text,
    "prompt_cache_key": _Text, "prompt_cache_retention": _Text,
}  # fmt: skip

_CHAT: dict[str, Any] = _SHARED | {
    "logprobs": Flag, "top_logprobs": Int, "max_completion_tokens": Count,
    "tools": Annotated[list[dict[str, Any]], Meta(max_length=1024)] | None, "tool_choice": str | dict[str, Any] | None,
    "functions": Annotated[list[dict[str, Any]], Meta(max_length=1024)] | None,
    "function_call": str | dict[str, Any] | None, "parallel_tool_calls": Flag,
    "reasoning_effort": _Text, "include_reasoning": Flag, "reasoning": _Anything, "verbosity": _Text,
    "modalities": _Words, "audio": _Map, "prediction": _Map, "web_search_options": _Map,
    "add_generation_prompt": Flag, "continue_final_message": Flag, "chat_template": _Text,
    "chat_template_kwargs": _Map, "documents": Annotated[list[dict[str, Any]], Meta(max_length=LIST_MAX)] | None,
    "return_prompt_text": Flag,
}  # fmt: skip

_TEXT: dict[str, Any] = _SHARED | {"logprobs": Int, "best_of": _N, "suffix": _Text}

_MODEL: dict[str, Any] = {"model": _SHARED["model"]}
_Tools = Annotated[list[dict[str, Any]], Meta(max_length=1024)] | None

_MESSAGES: dict[str, Any] = _MODEL | {
    "max_tokens": Annotated[int, Meta(ge=1, le=100_000_000)], "metadata": _Map, "stop_sequences": _Stops,
    "stream": Flag, "temperature": Number, "top_p": Number, "top_k": Int, "thinking": _Map, "tools": _Tools,
    "tool_choice": _Map, "service_tier": _Text, "output_config": _Map, "context_management": _Map,
    "cache_control": _Map, "inference_geo": _Text, "watermarking": Flag, "chat_template_kwargs": _Map,
}  # fmt: skip

_RESPONSES: dict[str, Any] = _MODEL | {
    "background": Flag, "include": _Words, "instructions": _Text, "max_output_tokens": Count,
    "max_tool_calls": Count, "metadata": _Map, "logit_bias": dict[str, float] | None, "parallel_tool_calls": Flag,
    "conversation": _Anything, "prompt": _Anything, "reasoning": _Map, "include_reasoning": Flag,
    "service_tier": _Text, "store": Flag, "stream": Flag, "stream_options": _Map, "temperature": Number,
    "text": _Map, "tool_choice": str | dict[str, Any] | None, "tools": _Tools, "top_logprobs": Int,
    "top_p": Number, "top_k": Int, "min_p": Number, "truncation": _Text, "user": _User,
    "safety_identifier": _Text, "prompt_cache_key": _Text, "prompt_cache_retention": _Text,
    "skip_special_tokens": Flag, "include_stop_str_in_output": Flag, "presence_penalty": Number,
    "frequency_penalty": Number, "repetition_penalty": Number, "seed": Int, "stop": _Stop, "stop_token_ids": _Ids,
    "ignore_eos": Flag, "structured_outputs": _Map, "watermarking": Flag, "chat_template_kwargs": _Map,
    "previous_input_messages": Annotated[list[dict[str, Any]], Meta(max_length=LIST_MAX)] | None,
}  # fmt: skip

_EMBEDDINGS: dict[str, Any] = _MODEL | {
    "encoding_format": Literal["float", "base64"] | None, "dimensions": Count, "user": _Text,
    "truncate_prompt_tokens": Int, "truncation_side": _Text, "padding": _Text, "add_special_tokens": Flag,
    "add_generation_prompt": Flag, "continue_final_message": Flag, "chat_template": _Text,
    "chat_template_kwargs": _Map, "embed_dtype": _Text, "endianness": _Text, "use_activation": Flag,
}  # fmt: skip


class Field:
    """One known field: how its value is checked and the bytes that introduce it upstream."""

    __slots__ = ("check", "compiled", "intro")

    def __init__(self, name: str, type_: Any) -> None:
        self.check = msgspec.json.Decoder(type_).decode
        self.intro = b'"%b":' % name.encode()
        self.compiled = name in COMPILED


def _fields(types: dict[str, Any]) -> dict[str, Field]:
    return {name: Field(name, type_) for name, type_ in types.items()}


CHAT_FIELDS = _fields(_CHAT)
TEXT_FIELDS = _fields(_TEXT)
MESSAGES_FIELDS = _fields(_MESSAGES)
RESPONSES_FIELDS = _fields(_RESPONSES)
EMBEDDINGS_FIELDS = _fields(_EMBEDDINGS)
"""All but the conversation itself (`messages`, `prompt`, `input`, `system`), which has readers of its own."""
