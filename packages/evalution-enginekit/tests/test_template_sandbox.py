from __future__ import annotations

import pytest

pytest.importorskip("jinja2", reason="needs the extra evalution-enginekit[tokenizers]")

from evalution_core import InvalidRequestError
from evalution_enginekit import template_sandbox
from evalution_enginekit.chat import ChatTemplate

MESSAGES = [{"role": "user", "content": "a\tb"}, {"role": "tool", "content": "c"}]
TIME = "takes more than 0.05 s of processor time"
SIZE = "makes a text or list of more than 65536 characters"
WIDTH = "a width, indent or precision is above 1000"
DOUBLINGS = "".join("{% set x = x ~ x %}" for _ in range(40))
NESTED = "".join("{% set x = [x, x] %}" for _ in range(30))
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
        "more than 1048576 characters on its way",
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
    ("{{ '{:>{}}'.format(3, 10**9) }}", WIDTH),
    ("{{ messages|tojson(indent=10**9) }}", WIDTH),
    ("{{ 'x\n'|indent(10**9) }}", WIDTH),
    ("{{ ('\n' * 99999)|indent('x' * 9999) }}", SIZE),
    ("{{ 9 ** (9 ** 9) }}", "a number has more than 65536 bits"),
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
    monkeypatch.setattr(template_sandbox, "TIME_LIMIT_S", 0.05 if reason == TIME else 5.0)
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
    ],
)
def test_template_within_the_limits_prints_as_jinja_does(source: str, text: str) -> None:
    assert ChatTemplate(source).render(MESSAGES) == text
