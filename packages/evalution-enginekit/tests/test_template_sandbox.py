from __future__ import annotations

import inspect
import json
import re
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import product
from typing import Any, cast

import pytest

pytest.importorskip("jinja2", reason="needs the extra evalution-enginekit[tokenizers]")

import jinja2
from jinja2.ext import loopcontrols
from jinja2.filters import FILTERS
from jinja2.sandbox import ImmutableSandboxedEnvironment

from evalution_core import InvalidRequestError
from evalution_enginekit import template_sandbox
from evalution_enginekit.chat import ChatTemplate

MESSAGES = [{"role": "user", "content": "a\tb"}, {"role": "tool", "content": "c"}]
TIME = "takes more than 0.05 s of processor time"
SIZE = "makes a text or list of more than 65536 characters"
WIDTH = "a width, indent or precision is above 1000"
DOUBLINGS = "".join("{% set x = x ~ x %}" for _ in range(40))
NESTED = "".join("{% set x = [x, x] %}" for _ in range(30))
ON_ITS_WAY = "more than 1048576 characters on its way"
BITS = "a number has more than 65536 bits"
DEEP = "{% set x = [1] * 99 %}" + "{% set x = [x] %}" * 99
LOOPS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
HOSTILE = [
    (LOOPS, TIME),
    (
        "{% macro m(n) %}{% if n %}{{ m(n-1) }}{{ m(n-1) }}{% endif %}{% endmacro %}{{ m(40) }}",
        TIME,
    ),
    ("{{ range(99999)|map('replace', '', 'x')|list }}" * 40, TIME),
    ("{{ 'x' * 10**9 }}", SIZE),
    ("{{ [0] * 10**9 }}", SIZE),
    ("{% set x = 'ab' %}" + DOUBLINGS, SIZE),
    ("{% set x = 'ab' %}" + DOUBLINGS.replace("~", "+"), SIZE),
    ("{% set x = 'ab' %}" + NESTED + "{{ x }}", SIZE),
    ("{% set x = 'ab' %}" + NESTED.replace("[x, x]", "{1: x, 2: x}") + "{{ x }}", SIZE),
    ("{% for i in range(999) %}{{ 'x' * 99999 }}{% endfor %}", SIZE),
    (
        "{% macro m() %}{% for i in range(99) %}{{ 'x'*9999 }}{% endfor %}{% endmacro %}{{ m() }}",
        SIZE,
    ),
    (
        "{% for i in range(999) %}{% set x = 'x' * 60000 %}{% endfor %}",
        ON_ITS_WAY,
    ),
    ("{{ ('x' * 99999).replace('', 'y' * 9999) }}", SIZE),
    ("{{ ('x' * 99999)|replace('x', 'y' * 9999) }}", SIZE),
    ("{{ ('y' * 99999).join(['x'] * 9999) }}", SIZE),
    ("{{ ('x' * 99999)|join('y' * 9999) }}", SIZE),
    ("{{ range(99999)|join('y' * 9999) }}", SIZE),
    ("{{ ('%s' * 99999) % (('x' * 9999,) * 99999) }}", SIZE),
    ("{{ ('{0}' * 99999).format('x' * 9999) }}", SIZE),
    ("{{ 'x'.center(10**9) }}", WIDTH),
    ("{{ ('x'|safe).ljust(10**9) }}", WIDTH),
    ("{{ 'x'|center(width=10**9) }}", WIDTH),
    ("{{ '%0999999999d' % 3 }}", WIDTH),
    ("{{ '%*d' % (10**9, 3) }}", WIDTH),
    ("{{ '{:>999999999}'.format(3) }}", WIDTH),
    ("{{ '%(a)0999999999d' % {'a': 3} }}", WIDTH),
    ("{{ '%(a 1)-+.9999f' % {'a 1': 3} }}", WIDTH),
    ("{{ '%.*f' % (9999, 3) }}", WIDTH),
    ("{{ '%0%%(a)9999d' % {'a': 3} }}", WIDTH),
    (
        "{{ '%((a))9999d' % {'(a)': 3} }}",
        "a format has a % without a type, or parentheses within a name",
    ),
    ("{{ '{:>{}}'.format(3, '999999999') }}", "a format has a field within a field"),
    ("{{ ('{0:999}' * 9999).format(1) }}", SIZE),
    ("{{ messages|tojson(indent=10**9) }}", WIDTH),
    ("{{ 'x\n'|indent(10**9) }}", WIDTH),
    ("{{ ('\n' * 99999)|indent('x' * 9999) }}", SIZE),
    ("{{ ('a\v' * 9999)|indent('x' * 9999) }}", SIZE),
    ("{{ ([1] * 999)|tojson(separators=('x' * 9999, ':')) }}", WIDTH),
    (DEEP + "{{ x|tojson(indent=16) }}", SIZE),
    ("{{ ('x' * 9999).join(range(999)|map('string')) }}", SIZE),
    ("{{ ([['a']] * 999)|join(attribute=0, d='x' * 9999) }}", SIZE),
    (
        "{% for x in ['x' * 9999] * 2 %}{{ ([loop] * 999)|sort(attribute='previtem') }}"
        "{% endfor %}",
        ON_ITS_WAY,
    ),
    (
        "{% set n = namespace(x='x' * 9999) %}{{ ([{'n': n}] * 999)|map(attribute='n.x')|list }}",
        ON_ITS_WAY,
    ),
    ("{% set n = namespace(x='x' * 9999) %}{{ ('{0.x}' * 9).format(n) }}", SIZE),
    ("{% set n = namespace(x='x' * 9999) %}{{ '{0[n].x}'.format({'n': n}) }}", SIZE),
    ("{% set n = namespace(x='x' * 9999) %}{{ ([n] * 999)|join(attribute='x') }}", ON_ITS_WAY),
    ("{% set x = {'a': 'x' * 9999}.values() %}{{ ('%s' * 99) % ((x,) * 99) }}", SIZE),
    ("{{ ('a' * 999)|replace(new='x' * 9999, old='a') }}", SIZE),
    ("{{ ([10 ** 4000] * 999)|join }}", SIZE),
    ("{{ ('x' * 9999)|list }}", SIZE),
    ("{{ ('xy' * 9999).split('x') }}", SIZE),
    ("{{ ('\n' * 9999).splitlines() }}", SIZE),
    ("{% for x in 'x' * 9999 if x %}{{ loop.length }}{% endfor %}", SIZE),
    ("{{ strftime_now('%999d' * 999) }}", "the format of a date has more than 1000 characters"),
    ("{% set x = 'x' * 60000 %}{{ [" + "x[1:]," * 99 + "] }}", ON_ITS_WAY),
    ("{% set x = ['x' * 60000] %}" + "{{ x }}" * 99, SIZE),
    ("{{ ('a' * 60000)|trim('b' * 60000) }}", SIZE),
    ("{{ ('a' * 60000)|trim(chars='b' * 60000) }}", SIZE),
    ("{{ ('a' * 60000).rfind('b' * 30000) }}", SIZE),
    ("{{ ('a' * 60000).rsplit(maxsplit=1, sep='b' * 30000) }}", SIZE),
    (
        "{% macro m(n) %}{{ m(n-1, varargs, varargs) if n }}{% endmacro %}{{ m(24, 1, 1) }}",
        SIZE,
    ),
    (
        "{% macro m(n, p, q) %}{{ m(n-1, 1, 1, p=kwargs, q=kwargs) if n }}"
        "{% endmacro %}{{ m(24, 1, 1, p=1) }}",
        SIZE,
    ),
    (
        "{% macro a(n, o) %}{{ b(n-1, varargs, o, o) if n else varargs == o }}{% endmacro %}"
        "{% macro b(n, o) %}{{ a(n, varargs, o, o) }}{% endmacro %}{{ a(27, (1, 1), 1, 1) }}",
        SIZE,
    ),
    (
        "{% set n = namespace(v=[1]) %}{% for i in range(22) %}"
        "{% for y in n.v|batch(n.v|length+1, n.v) %}{% set n.v = y %}{% endfor %}{% endfor %}"
        "{{ n.v|length }}",
        SIZE,
    ),
    ("{{ ([[1]] * 999)|sum(start=[]) }}", "sum starts with something else than a number"),
    ("{{ ('a' * 999)|wordwrap(1) }}", "No filter named 'wordwrap'"),
    ("{{ ('<!---->' * 999)|striptags }}", "No filter named 'striptags'"),
    ("{{ ('<!---->'|safe).striptags() }}", "striptags() is not for chat templates"),
    ("{{ ([1] * 999)|groupby('a', 'x' * 9999) }}", WIDTH),
    ("{{ [1]|map(attribute='real' ~ '.real' * 99999)|list }}" * 9, SIZE),
    ("{{ 0x" + "f" * 20000 + " // 3 }}", BITS),
    ("{{ ('f' * 20000)|int(base=16) }}", BITS),
    ("{{ 9 ** (9 ** 9) }}", BITS),
    ("{{ 'x'.encode() }}", "encode() is not for chat templates"),
    ("{{ (1).to_bytes(10**9, 'big') }}", "to_bytes() is not for chat templates"),
    ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "maximum recursion depth exceeded"),
    ("{{" + "(" * 5000 + "1" + ")" * 5000 + "}}", "maximum recursion depth exceeded"),
    ("{% for i in x %}" * 30 + "{% endfor %}" * 30, "too many statically nested blocks"),
    ("{{ lipsum(n=10**9) }}", "'lipsum' is undefined"),
]


@pytest.mark.parametrize(("source", "reason"), HOSTILE)
def test_template_that_runs_on_or_fills_the_memory_is_refused(
    monkeypatch: pytest.MonkeyPatch, source: str, reason: str
) -> None:
    monkeypatch.setattr(template_sandbox, "TIME_LIMIT_S", 0.03 if reason == TIME else 5.0)
    monkeypatch.setattr(template_sandbox, "LONGEST_TEXT", 1 << 16)
    monkeypatch.setattr(template_sandbox, "MOST_TEXT", 1 << 20)
    with pytest.raises(InvalidRequestError) as caught:
        ChatTemplate(source).render(MESSAGES)
    assert "the chat template refused the messages: " in str(caught.value)
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{% for m in messages %}{{ loop.index ~ '/' ~ loop.length }} {% endfor %}", "1/2 2/2 "),
        ("{% for m in messages[1:] %}{{ m['role'] }}{% else %}none{% endfor %}", "tool"),
        ("{{ messages|map(attribute='role')|join(', ') }}", "user, tool"),
        ("{{ '%s=%5.2f' % ('a', 1.5) }} {{ '{0}-{b:>3}'.format(1, b=2) }}", "a= 1.50 1-  2"),
        ("{{ 'year 20241'.replace('year', 'in') }}", "in 20241"),
        (
            "{% set n = namespace(t='') %}{% for i in range(3) %}{% set n.t = n.t ~ i %}"
            "{% endfor %}{{ n.t }}",
            "012",
        ),
        ("{% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}{% endfor %}", "a1"),
        ("{{ none ~ true ~ 1.0 ~ x }}", "NoneTrue1.0"),
        (
            "{% for a in [[1, [2]]] recursive %}{{ a if a is number else loop(a) }}{% endfor %}",
            "12",
        ),
        (
            "{{ 'a\nb'|indent(2) }}|{{ 'x'|center(3) }}|{{ 'ab'|replace('b', 'c') }}",
            "a\n  b| x |ac",
        ),
        ("{{ ([1] + [2]) * 2 }} {{ 2 ** 10 + 1 }} {{ 7 % 4 }}", "[1, 2, 1, 2] 1025 3"),
        (
            "{{ [{'a': 'é'}]|tojson(ensure_ascii=True, separators=(',', ':')) }}",
            '[{"a":"\\u00e9"}]',
        ),
        ("{{ [{'a': 1}, {}]|join(attribute='a', d='-') }} {{ [1, 2]|sum(start=1) }}", "1- 4"),
        (
            "{{ '-'.join(messages|map(attribute='role')) }} {{ dict([(1, 2)], a=3) }}",
            "user-tool {1: 2, 'a': 3}",
        ),
        ('{{ \'{"a": {"year": 2024, "b": %s}}\' % 1 }}', '{"a": {"year": 2024, "b": 1}}'),
        ("{{ '{{{}}} {{:9999}}'.format('%1234d') }}", "{%1234d} {:9999}"),
        (
            "{{ '%(x)s 2024, %% 2024' % {'x': 1} }} {{ '%(a 1)5.1f' % {'a 1': 1} }}",
            "1 2024, % 2024   1.0",
        ),
        (
            "{% macro m(n, a) %}{{ n.i }}{{ a.index }}{{ varargs }}{{ kwargs }}{{ caller() }}"
            "{% endmacro %}{% for i in [1] %}{% set n = namespace({'i': 1}, self=2, given=3) %}"
            "{% call m(n, loop, i, obj=n.self, context=n.given) %}c{% endcall %}{% endfor %}",
            "11(1,){'obj': 2, 'context': 3}c",
        ),
        ("{{ messages[:-1]|length }} {{ 'abc'[::-1] }} {{ 7 // 2 - 1 }}", "1 cba 2"),
        ("{% set d = {'n': namespace(b=1)} %}{{ d.n.b }} {{ [d.n] }}", "1 [<Namespace>]"),
        (
            "{% macro m() %}{{ varargs[0].index }}{% endmacro %}"
            "{% for x in messages %}{{ m(loop) }}{% endfor %}",
            "12",
        ),
        (
            "{% set x = 1 %}{% generation %}{% set x = 2 %}{{ x }}{% endgeneration %}{{ x }}",
            "21",
        ),
        ("{{ [1]|tojson(indent='  ') }} {{ strftime_now('%Z|%z') }}", "[\n  1\n] |"),
        ("{{ ' a\nb '|trim }} {{ 'a b'.split() }} {{ '--a'|trim('-') }}", "a\nb ['a', 'b'] a"),
    ],
)
def test_template_within_the_limits_prints_as_jinja_does(source: str, text: str) -> None:
    assert ChatTemplate(source).render(MESSAGES) == text


def test_messages_that_a_template_gathers_are_not_measured_at_each_step() -> None:
    source = (
        "{% set n = namespace(l=[]) %}{% for m in messages %}{% set n.l = n.l + [m] %}{% endfor %}"
        "{{ n.l|length }}"
    )
    messages = [{"role": "user", "content": "x" * 2000}] * 1000
    assert ChatTemplate(source).render(messages) == "1000"


def test_time_grows_with_the_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_sandbox, "TIME_LIMIT_S", -8.0)
    template = ChatTemplate("{% for i in range(10**4) %}{{ i }}{% endfor %}")
    for count, limit in [(0, "-8 s"), (200, "-6 s"), (800, "0 s"), (9999, "0 s")]:
        with pytest.raises(InvalidRequestError, match=f"it takes more than {limit} of processor"):
            template.render([MESSAGES[0]] * count)


@pytest.mark.parametrize("maker", ["dict", "namespace"])
def test_each_key_of_a_mapping_is_a_step(monkeypatch: pytest.MonkeyPatch, maker: str) -> None:
    monkeypatch.setattr(template_sandbox, "TIME_LIMIT_S", -1.0)
    template = ChatTemplate(f"{{% set n = {maker}(given) %}}{{{{ n.a1 }}}}")
    assert template.with_variables({"given": {"a1": 2}}).render([]) == "2"
    many = template.with_variables({"given": {f"a{at}": 2 for at in range(99)}})
    with pytest.raises(InvalidRequestError, match=r"it takes more than -1 s of processor time"):
        many.render([])


def render_plainly(source: str, messages: list[Any], **variables: Any) -> str | None:
    """Render in Jinja's sandbox without limits; None where that refuses."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    cast("Any", environment.filters)["tojson"] = json.dumps
    try:
        return environment.from_string(source).render(messages=messages, **variables)
    except (jinja2.TemplateError, TypeError):
        return None


def render_limited(source: str, messages: list[Any]) -> str | None:
    try:
        return ChatTemplate(source).render(messages)
    except InvalidRequestError:
        return None


TEXT = "a, b {x}\tcd\n" * 5000
ARGUMENTS = {
    **dict.fromkeys(("center", "ljust", "rjust"), "20, '-'"),
    **dict.fromkeys(("count", "find", "index", "rfind", "rindex"), "'a', 1, 99"),
    **dict.fromkeys(("endswith", "startswith"), "'a', 0, 1"),
    **dict.fromkeys(("lstrip", "rstrip", "strip"), "'a\\n'"),
    **dict.fromkeys(("partition", "rpartition", "removeprefix", "removesuffix"), "'a, '"),
    **dict.fromkeys(("split", "rsplit"), "sep=',', maxsplit=3"),
    "expandtabs": "tabsize=2",
    "format": "x='y'",
    "format_map": "{'x': 'y'}",
    "join": "['b', 'c']",
    "replace": "'a', 'b', 1",
    "splitlines": "keepends=true",
    "zfill": "20",
}
OTHER_ARGUMENTS = {"count": "1", "index": "1", "get": "'a', 2"}
CHANGES = {
    *("append", "clear", "extend", "insert", "pop", "popitem", "remove", "reverse", "setdefault"),
    *("sort", "update"),
}
"""Methods that the sandbox keeps from templates."""
REFUSED = {"encode", "fromkeys", "maketrans", "translate"}
REFUSED_FILTERS = {"pprint", "striptags", "urlencode", "urlize", "wordwrap", "xmlattr"}
METHODS = ["messages[0].content.split()", "messages[0].content.strip()"] + [
    f"{value}.{name}({known.get(name, '')})"
    for value, owner, known in (
        ("messages[0].content", str, ARGUMENTS),
        ("[3, 1]", list, OTHER_ARGUMENTS),
        ("{'a': 1}", dict, OTHER_ARGUMENTS),
    )
    for name in dir(owner)
    if not (name.startswith("_") or name in CHANGES | REFUSED)
]
PLACES = [
    "{{ %s }}",
    "{%% for m in messages %%}{{ %s }}{%% endfor %%}",
    "{%% for m in messages %%}{%% set c = %s %%}{{ c }}{%% endfor %%}",
    "{%% for m in messages %%}{%% set c = m.content %%}{{ %s }}{%% endfor %%}",
    "{%% block b %%}{{ %s }}{%% endblock %%}",
    "{%% for m in messages %%}{%% block b scoped %%}{{ %s }}{%% endblock %%}{%% endfor %%}",
]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("method", METHODS)
def test_methods_return_what_jinja_does_in_loops_and_blocks(method: str, place: str) -> None:
    source = place % method
    messages = [{"role": "user", "content": TEXT}]
    expected = render_plainly(source, messages)
    assert expected is not None
    assert render_limited(source, messages) == expected


OPTIONS_OF_FILTERS = {
    "abs": ("-1", ""),
    "attr": ("messages", "name='x'"),
    "batch": ("range(5)", "linecount=2, fill_with='-'"),
    "center": ("'a'", "width=9"),
    "d": ("x", "default_value='a', boolean=true"),
    "default": ("''", "default_value='a', boolean=true"),
    "dictsort": ("{'b': 1, 'a': 2}", "case_sensitive=true, by='value', reverse=true"),
    "filesizeformat": ("9999", "binary=true"),
    "float": ("'x'", "default=1.5"),
    "groupby": ("messages", "attribute='role', default='', case_sensitive=true"),
    "indent": ("'a\nb'", "width=2, first=true, blank=true"),
    "int": ("'x'", "default=1, base=16"),
    "items": ("{'a': 1}", ""),
    "join": ("messages", "d='-', attribute='role'"),
    "map": ("messages", "attribute='name', default='x'"),
    "max": ("messages", "case_sensitive=true, attribute='role'"),
    "min": ("messages", "case_sensitive=true, attribute='role'"),
    "random": ("[1]", ""),
    "rejectattr": ("messages", "'name'"),
    "replace": ("'aa'", "old='a', new='b', count=1"),
    "round": ("1.25", "precision=1, method='floor'"),
    "selectattr": ("messages", "'role', 'equalto', 'tool'"),
    "slice": ("[1, 2, 3]", "slices=2, fill_with='-'"),
    "sort": ("messages", "reverse=true, case_sensitive=true, attribute='role'"),
    "sum": ("[[1]]", "attribute=0, start=1"),
    "tojson": ("messages", "indent=2"),
    "trim": ("'-a-'", "chars='-'"),
    "truncate": ("'a b c d'", "length=5, killwords=true, end='..', leeway=0"),
    "unique": ("messages", "case_sensitive=true, attribute='role'"),
}


@pytest.mark.parametrize("name", sorted(FILTERS.keys() - REFUSED_FILTERS))
def test_filters_take_the_options_of_jinja(name: str) -> None:
    value, options = OPTIONS_OF_FILTERS.get(name, ("'a B'", ""))
    found = inspect.signature(FILTERS[name]).parameters.values()
    known = [
        each.name
        for each in found
        if each.kind is each.POSITIONAL_OR_KEYWORD
        and each.name not in {"context", "env", "environment", "eval_ctx"}
    ]
    if name != "map":
        assert re.findall(r"(\w+)=", options) == known[1:]
    source = (
        f"{{% set x = {value}|{name}({options}) %}}"
        "{{ x if x is string or x is number or x is undefined else x|list }}"
    )
    expected = render_plainly(source, MESSAGES)
    assert expected is not None
    assert render_limited(source, MESSAGES) == expected


VALUES: list[Any] = [
    "a\v" * 4000,
    "語" * 8000,
    ["a"] * 900,
    [{"a": "b" * 9}] * 100,
    {f"k{at}": "v" for at in range(300)},
    {"a": "b" * 8000}.values(),
]
OPTIONS: list[Any] = ["a" * 8000, ("a" * 8000, ":"), 999, 10**4000]
Call = tuple[str, list[Any], dict[str, Any]]


def list_filter_calls() -> Iterator[Call]:
    """Each filter with a large value and a large one of each option, by its name too."""
    filters = cast("dict[str, Any]", template_sandbox.TemplateEnvironment().filters)
    for (name, function), value, option in product(filters.items(), VALUES, OPTIONS):
        for given in ([], [option], ["a", option], [option, option], [1, option], [1, 1, option]):
            yield name, [value, *given], {}
        others = {"replace": {"new": "a", "old": "a"}, "join": {"attribute": 0}}.get(name, {})
        for parameter in (*inspect.signature(function).parameters, "attribute", "default"):
            yield name, [value], {**others, parameter: option}


def list_method_calls() -> Iterator[Call]:
    for value, option in product([*VALUES, "a", "x" * 8000 + "%s{0}"], [*OPTIONS, *VALUES]):
        for name in dir(value):
            if not name.startswith("_"):
                for given in ([], [option], ["a", option], [option, option], [1, option]):
                    yield name, [value, *given], {}


@pytest.mark.parametrize("list_calls", [list_filter_calls, list_method_calls])
def test_no_filter_and_no_method_makes_much_in_one_step(
    monkeypatch: pytest.MonkeyPatch, list_calls: Callable[[], Iterator[Call]]
) -> None:
    monkeypatch.setattr(template_sandbox, "LONGEST_TEXT", 1 << 14)
    environment = template_sandbox.TemplateEnvironment()
    context = environment.from_string("").new_context()

    def take_step(name: str, given: list[Any], named: dict[str, Any]) -> Any:
        if list_calls is list_method_calls:
            method = environment.getattr(given[0], name)
            return environment.call(context, method, *given[1:], **named)
        return environment.call_filter(name, given[0], given[1:], named, context, context.eval_ctx)

    tracemalloc.start()
    try:
        for call in list_calls():
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            with suppress(Exception), template_sandbox.limit_rendering():
                cast("Any", environment).finalize(take_step("list", [take_step(*call)], {}))
            assert tracemalloc.get_traced_memory()[1] - before < 1 << 20, str(call)[:200]
    finally:
        tracemalloc.stop()
