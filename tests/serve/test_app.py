"""The endpoints, in this process."""

import json
import shutil
from dataclasses import replace

import pytest
from starlette.testclient import TestClient

import tfkit
from tfkit import Classifier, InputError, MaskFiller, PowerLengthPenalty, Search, TextGenerator, Translator
from tfkit.cpu import int8
from tfkit.cpu.low_precision import LowPrecisionLinear
from tfkit.data import TextTokeniser
from tfkit.serve.app import Server
from tfkit.serve.limits import Limits
from tfkit.serve.tasks import load_task
from tfkit.text import model_in
from translation_task import sentences

pytestmark = pytest.mark.xdist_group("served")
POWER = PowerLengthPenalty(1.0)
LIMITS = Limits(body=4000, texts=8, length=60, characters=1000, new_tokens=15, requests=4)
TEXTS = [source for source, _ in sentences(4, seed=5)]


@pytest.fixture(scope="module")
def tasks(runs):
    return {name: load_task(run, LIMITS, Search(), batch_tokens=400, workers=1) for name, run in runs.items()}


@pytest.fixture
def client_of(tasks):
    opened = []

    def client(name, **settings):
        found = TestClient(Server(tasks[name], **settings).app()).__enter__()
        opened.append(found)
        return found

    yield client
    for each in opened:
        each.__exit__(None, None, None)


def test_translations_are_those_of_the_library(client_of, runs):
    found = client_of("translate").post("/translate", json={"texts": [*TEXTS, ""]})
    assert found.status_code == 200
    alone = Translator.load(runs["translate"])
    expected = [next(alone.translate([text])).text for text in [*TEXTS, ""]]
    assert [each["text"] for each in found.json()["results"]] == expected
    assert any(expected)


def test_recorded_steps_give_what_ordinary_ones_give(client_of, runs, recordings_on_cpu):
    """With a stand-in for the device."""
    recordings_on_cpu()
    options = {"batch_tokens": 400, "workers": 1, "cuda_graphs": True}
    for name, body in (("translate", {"texts": TEXTS}), ("generate", {"prompt": "the dog", "max_tokens": 9})):
        task = load_task(runs[name], LIMITS, Search(), **options)
        with TestClient(Server(task).app()) as client:
            found, expected = (one.post(task.path, json=body).json() for one in (client, client_of(name)))
        for results in (found, expected):
            for each in results.get("results", [results]):
                each.pop("score", None), each.pop("log_probability", None)
        assert found == expected
    with pytest.raises(InputError, match=r"TFK063 .* has no decoding steps, of which CUDA graphs are recorded"):
        load_task(runs["classify"], LIMITS, Search(), **options)


def test_translations_begin_with_prefixes_and_say_whether_they_finished(client_of, runs):
    library = Translator.load(runs["translate"])
    word = library.tokenisers["target"].decode([12])
    found = client_of("translate").post("/translate", json={"texts": TEXTS[:2], "prefixes": [word, ""]}).json()["results"]
    expected = list(library.translate(TEXTS[:2], prefixes=[word, ""]))
    assert [each["text"] for each in found] == [each.text for each in expected]
    assert [each["finished"] for each in found] == [each.hypotheses[0].finished for each in expected]


def test_classes_are_those_of_the_library(client_of, runs):
    found = client_of("classify").post("/classify", json={"texts": TEXTS}).json()["results"]
    expected = list(Classifier.load(runs["classify"]).classify(TEXTS))
    assert [each["label"] for each in found] == [each.label for each in expected]
    assert [each["probabilities"] for each in found] == [pytest.approx(each.probabilities, abs=1e-6) for each in expected]


def test_masks_are_filled_as_by_the_library(client_of, runs):
    texts = ["the <mask> dog", "<mask> sees the <mask>", ""]
    answer = client_of("fill").post("/fill", json={"texts": texts, "top": 2}).json()["results"]
    for result, filling in zip(answer, MaskFiller.load(runs["fill"]).fill(texts, top=2), strict=True):
        assert (result["filled"], result["unknown"]) == (filling.filled, filling.unknown)
        for candidates, expected in zip(result["masks"], filling.masks, strict=True):
            assert [candidate["token"] for candidate in candidates] == [candidate.token for candidate in expected]
            probabilities = [candidate.probability for candidate in expected]
            assert [candidate["probability"] for candidate in candidates] == pytest.approx(probabilities, abs=1e-6)


def test_the_filters_of_a_model_act_in_its_generations(runs, tmp_path):
    place = shutil.copytree(model_in(runs["generate"]), tmp_path / "model")
    request = {"prompt": TEXTS[0], "max_tokens": 12}

    def text():
        with TestClient(Server(load_task(place, LIMITS, Search(), batch_tokens=400, workers=1)).app()) as client:
            return client.post("/generate", json=request).json()["text"]

    before = text()
    (place / "generation.json").write_text('{"kind": "greedy", "filters": [{"kind": "no_repeat_ngram", "size": 1}]}')
    alone = TextGenerator.load(place)
    search = replace(alone.search, length_factor=0.0, extra_length=12)
    ((expected,),) = alone.continue_all([TEXTS[0]], search)
    assert text() == expected.text != before


@pytest.mark.parametrize("name", ["translate", "classify"])
def test_rounded_weights_give_in_a_batch_what_they_give_alone(runs, small_weights_rounded, name):
    if int8.fastest(tfkit.load_catalogue().entries("int8_kernel")) is None:
        pytest.skip("not run: this processor has no int8 products")
    task = load_task(runs[name], LIMITS, Search(), batch_tokens=400, workers=1, precision="int8")
    assert any(isinstance(module, LowPrecisionLinear) for module in task.model.modules())
    with TestClient(Server(task).app()) as client:
        together = client.post(task.path, json={"texts": TEXTS}).json()["results"]
        alone = [client.post(task.path, json={"texts": [text]}).json()["results"][0] for text in TEXTS]
    chosen, number = ("text", "score") if name == "translate" else ("label", "probability")
    assert [each[chosen] for each in together] == [each[chosen] for each in alone]
    assert [each[number] for each in together] == pytest.approx([each[number] for each in alone], rel=1e-5)


@pytest.mark.parametrize("sampled", [{}, {"temperature": 0.9, "seed": 7}])
def test_a_continuation_is_that_of_the_library_whole_or_streamed(client_of, runs, sampled):
    client, wanted = client_of("generate"), {"prompt": "the old", "max_tokens": 6, **sampled}
    whole = client.post("/generate", json=wanted).json()
    kind = "sample" if sampled else "greedy"
    search = Search(kind=kind, length_factor=0.0, extra_length=6, **sampled)
    ((expected,),) = TextGenerator.load(runs["generate"]).continue_all(["the old"], search)
    assert (whole["text"], whole["tokens"]) == (expected.text, len(expected.hypothesis.ids))
    with client.stream("POST", "/generate", json={**wanted, "stream": True}) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        *parts, done = response.read().decode().strip().split("\n\n")
    assert len(parts) > 1
    assert "".join(json.loads(part.removeprefix("data: "))["text"] for part in parts) == expected.text
    assert json.loads(done.removeprefix("event: done\ndata: ")) == whole


def test_a_generation_without_a_number_of_tokens_has_as_many_as_are_allowed(client_of):
    found = client_of("generate").post("/generate", json={"prompt": TEXTS[0]})
    assert (found.status_code, found.json()["tokens"] <= LIMITS.new_tokens) == (200, True)


OTHER_TYPES = [
    "text/plain",
    "application/json; charset=utf-16",
    f"application/json; charset*{'9' * 5000}=u",
    "application/json; charset=utf-8; charset=latin-1",
    "application/json; a*=x; a*0=y",
    "application/json; charset*=%00''utf-8",
    "application/json; charset*=no_codec''utf-8",
]
"""Types of a body that is not JSON in UTF-8."""


@pytest.mark.parametrize(
    ("name", "path", "sent", "status", "code"),
    [
        ("translate", "/translate", {"content": b'{"texts": ['}, 400, "malformed_json"),
        ("translate", "/translate", {"content": b"\xff\xfe"}, 400, "malformed_json"),
        ("translate", "/translate", {"content": b"[" * 3000}, 400, "malformed_json"),
        ("translate", "/translate", {"content": b'{"texts": ["a"], "texts": ["b"]}'}, 400, "malformed_json"),
        ("translate", "/translate", {"content": b'{"texts": ["\\ud800"]}'}, 400, "malformed_json"),
        ("translate", "/translate", {"content": b'{"texts": NaN}'}, 400, "malformed_json"),
        (
            "translate",
            "/translate",
            {"content": b'{"texts": ["a"]}', "headers": {"Transfer-Encoding": "chunked", "Content-Length": "16"}},
            400,
            "malformed_http",
        ),
        ("translate", "/translate", {"json": ["a"]}, 422, "invalid_request"),
        ("translate", "/translate", {"json": {"texts": []}}, 422, "invalid_request"),
        ("translate", "/translate", {"json": {"texts": [1]}}, 422, "invalid_request"),
        ("translate", "/translate", {"json": {"texts": ["a"], "beam": 9}}, 422, "invalid_request"),
        ("translate", "/translate", {"json": {"texts": ["a"], "beams": 17}}, 413, "too_many_beams"),
        ("translate", "/translate", {"json": {"texts": ["a"], "n_best": 10**9}}, 413, "too_many_beams"),
        ("translate", "/translate", {"json": {"texts": ["a"], "n_best": 17, "temperature": 1.0}}, 413, "too_many_beams"),
        ("translate", "/translate", {"json": {"texts": ["a"], "max_tokens": 16}}, 413, "too_many_tokens"),
        ("translate", "/translate", {"json": {"texts": ["a"], "beams": 0}}, 422, "invalid_request"),
        ("translate", "/translate", {"json": {"texts": ["a"], "beams": 2, "n_best": 3}}, 422, "invalid_request"),
        ("translate", "/translate", {"json": {"texts": ["a"], "beams": 1, "alpha": 1.0}}, 422, "invalid_request"),
        ("translate", "/translate", {"json": {"texts": ["a"], "top_k": 3}}, 422, "invalid_request"),
        ("translate", "/translate", {"json": {"texts": ["a"], "beams": 2, "temperature": 1.0}}, 422, "invalid_request"),
        ("translate", "/translate", {"json": {"texts": ["a"], "temperature": 1.0, "top_k": 2**63}}, 422, "invalid_request"),
        ("translate", "/translate", {"json": {"texts": ["a"], "alpha": 11}}, 422, "invalid_request"),
        ("translate", "/translate", {"json": {"texts": ["a"], "prefixes": ["dog cat"], "max_tokens": 2}}, 413, "text_too_long"),
        ("translate", "/translate", {"json": {"texts": ["a"] * 9}}, 413, "too_many_texts"),
        ("translate", "/translate", {"json": {"texts": ["a"], "prefixes": []}}, 422, "invalid_request"),
        ("translate", "/translate", {"json": {"texts": ["a"], "prefixes": ["a", "b"]}}, 422, "invalid_request"),
        ("translate", "/translate", {"json": {"texts": ["a"], "prefixes": "a"}}, 422, "invalid_request"),
        ("translate", "/translate", {"json": {"texts": ["a"], "prefixes": ["dog " * 70]}}, 413, "text_too_long"),
        ("translate", "/translate", {"json": {"texts": ["a"], "prefixes": ["a" * 1001]}}, 413, "text_too_long"),
        ("translate", "/translate", {"json": {"texts": ["a"], "target_language": "de"}}, 422, "unknown_language"),
        ("classify", "/classify", {"json": {"texts": ["a"], "prefixes": ["a"]}}, 422, "invalid_request"),
        ("translate", "/translate", {"json": {"texts": ["dog", "dog " * 70]}}, 413, "text_too_long"),
        ("translate", "/translate", {"content": b'"' + b"a" * 4000}, 413, "body_too_large"),
        ("translate", "/translate", {"content": iter([b"a" * 3000] * 2)}, 413, "body_too_large"),
        ("translate", "/translate", {"content": b"{}", "headers": {"Content-Encoding": "gzip"}}, 415, "unsupported_media_type"),
        *(
            ("translate", "/translate", {"content": b"{}", "headers": {"Content-Type": kind}}, 415, "unsupported_media_type")
            for kind in OTHER_TYPES
        ),
        ("translate", "/translate", {"content": b"[]"}, 422, "invalid_request"),
        ("translate", "/generate", {"json": {"prompt": "a"}}, 404, "wrong_endpoint"),
        ("translate", "/none", {"json": {}}, 404, "not_found"),
        ("translate", "/translate/", {"json": {}, "headers": {"Host": "b.example"}}, 404, "not_found"),
        ("generate", "/generate", {"json": {"prompt": "dog", "max_tokens": 16}}, 413, "too_many_tokens"),
        ("generate", "/generate", {"json": {"prompt": ""}}, 422, "empty_prompt"),
        ("generate", "/generate", {"json": {"prompt": "", "max_tokens": 3}}, 422, "empty_prompt"),
        ("generate", "/generate", {"json": {"prompt": "dog", "temperature": 1.0, "top_k": 2**63}}, 422, "invalid_request"),
        ("generate", "/generate", {"json": {"prompt": "dog", "max_tokens": 3, "seed": 1}}, 422, "invalid_request"),
        ("classify", "/classify", {"json": {"pairs": [["a", "b"]]}}, 422, "invalid_request"),
        ("fill", "/fill", {"json": {"texts": ["<mask>", "no mask"]}}, 422, "no_mask"),
        ("fill", "/fill", {"json": {"texts": ["<mask> " * 59]}}, 413, "text_too_long"),
        ("fill", "/fill", {"json": {"texts": ["<mask> " * 40] * 8, "top": 100}}, 413, "too_many_candidates"),
    ],
)
def test_a_wrong_request_is_refused_by_a_typed_error(client_of, name, path, sent, status, code):
    headers = {"Content-Type": "application/json", **sent.get("headers", {})}
    found = client_of(name).post(path, **{**sent, "headers": headers})
    assert (found.status_code, found.json()["error"]["code"]) == (status, code)
    assert found.json()["error"]["message"]
    assert "Traceback" not in found.text


def test_an_error_quotes_a_client_without_control_characters(client_of):
    refused = client_of("translate").post("/translate", json={"texts": ["a"], "b\u202e\x1bc": 1}).json()["error"]
    assert refused["fields"][0]["field"] == "b\\u202e\\x1bc"
    assert "b\\u202e\\x1bc" in refused["message"]


@pytest.mark.parametrize(
    "kind", ["application/json", "Application/JSON ; charset=UTF-8", 'application/json;charset="us-ascii"; profile=a;']
)
def test_json_in_utf8_is_read_whatever_its_parameters(client_of, kind):
    assert client_of("translate").post("/translate", content=b"[]", headers={"Content-Type": kind}).status_code == 422


@pytest.mark.parametrize("header", [("Content-Encoding", "gzip"), ("Content-Type", "text/plain")])
def test_a_header_that_is_there_twice_is_not_half_ignored(client_of, header):
    headers = [("Content-Type", "application/json"), ("Content-Encoding", "identity"), header]
    assert client_of("translate").post("/translate", content=b"{}", headers=headers).status_code == 415


@pytest.mark.parametrize(
    ("name", "field", "of"),
    [
        ("translate", "texts", lambda text: ["dog", text]),
        ("classify", "texts", lambda text: ["dog", text]),
        ("generate", "prompt", lambda text: text),
    ],
)
@pytest.mark.parametrize(
    ("text", "characters", "said"),
    [
        ("a" * 1001, 1001, "1,001 characters, and at most 1,000 are read"),
        ("\ufdfa" * 56, 1008, "1,008 characters after Unicode normalisation, and at most 1,000 are read"),
    ],
)
def test_a_text_of_too_many_characters_is_not_tokenised(client_of, tasks, monkeypatch, name, field, of, text, characters, said):
    monkeypatch.setattr(TextTokeniser, "encode", lambda self, texts: [[7] if texts == ["dog"] else pytest.fail("tokenised")])
    words = {"max_tokens": 3} if name == "generate" else {}
    found = client_of(name).post(tasks[name].path, json={field: of(text), **words})
    error = found.json()["error"]
    assert (found.status_code, error["code"], error["characters"], error["limit"]) == (413, "text_too_long", characters, 1000)
    assert said in error["message"]


@pytest.mark.parametrize(
    ("name", "sent"),
    [
        ("translate", {"texts": [1] * 1000}),
        ("classify", {"texts": [[]] * 1000}),
        ("translate", {"texts": ["a"], **{f"k{number}": 1 for number in range(400)}}),
    ],
)
def test_the_errors_of_a_request_are_few(client_of, tasks, name, sent):
    found = client_of(name).post(tasks[name].path, json=sent)
    assert found.status_code == 422
    assert 0 < len(found.json()["error"]["fields"]) < 10


def test_a_wrong_method_is_refused(client_of):
    found = client_of("translate").get("/translate")
    assert (found.status_code, found.json()["error"]["code"]) == (405, "method_not_allowed")


def test_a_full_queue_is_refused_with_the_time_to_wait(client_of):
    found = client_of("translate", max_queue=3).post("/translate", json={"texts": TEXTS})
    assert (found.status_code, found.json()["error"]["code"]) == (503, "busy")
    assert found.headers["Retry-After"] == "1"


def test_a_failure_of_the_model_is_a_typed_error_without_its_words(client_of, tasks, monkeypatch, capsys):
    def broken(items):
        raise RuntimeError("secret words")

    monkeypatch.setattr(tasks["translate"], "work", broken)
    found = client_of("translate").post("/translate", json={"texts": ["a dog"]})
    assert (found.status_code, found.json()["error"]["code"]) == (500, "failed")
    assert "secret" not in found.text
    assert "RuntimeError: secret words" in capsys.readouterr().err


def test_health_readiness_and_metrics(client_of):
    client = client_of("translate")
    client.post("/translate", json={"texts": TEXTS})
    assert client.get("/health").json() == {"status": "alive"}
    assert client.get("/ready").json() == {"status": "ready", "path": "/translate"}
    lines = client.get("/metrics").text.splitlines()
    assert 'tfkit_requests_total{path="/translate",status="200"} 1.0' in lines
    assert "tfkit_batch_texts_sum 4.0" in lines
    assert "tfkit_running_requests 0.0" in lines


@pytest.mark.parametrize(
    ("asked", "search"),
    [
        ({"n_best": 3}, Search(n_best=3)),
        ({"beams": 1}, Search(kind="greedy")),
        ({"beams": 7, "n_best": 6, "penalty": "power", "alpha": 1}, Search(beams=7, n_best=6, length_penalty=POWER)),
        ({"max_tokens": 2}, Search(length_factor=0.0, extra_length=2)),
        ({"max_tokens": 15}, Search(length_factor=0.0, extra_length=15)),
        (
            {"temperature": 0.8, "top_k": 9, "seed": 4, "n_best": 2},
            Search(kind="sample", temperature=0.8, top_k=9, seed=4, n_best=2),
        ),
    ],
)
def test_a_request_has_a_search_of_its_own(client_of, runs, asked, search):
    results = client_of("translate").post("/translate", json={"texts": TEXTS[:2], **asked}).json()["results"]
    library = Translator.load(runs["translate"], search)
    for text, result in zip(TEXTS[:2], results, strict=True):
        (expected,) = library.translate([text])
        assert (result["text"], result["finished"]) == (expected.text, expected.hypotheses[0].finished)
        assert result["score"] == pytest.approx(expected.hypotheses[0].score, rel=1e-4)
        assert ("hypotheses" in result) == ("n_best" in asked)
        if "n_best" in asked:
            assert [one["text"] for one in result["hypotheses"]] == list(expected.texts)
        assert result.get("seed") == asked.get("seed")


def test_a_request_gets_no_more_tokens_than_without_settings(runs):
    """The search of the server allows 3 tokens; a request that asks for 15 gets these, of each length of source."""
    usual = Search(length_factor=0.0, extra_length=3)
    with TestClient(Server(load_task(runs["translate"], LIMITS, usual, batch_tokens=400, workers=1)).app()) as client:
        usually, asked = (client.post("/translate", json={"texts": TEXTS, **more}).json() for more in ({}, {"max_tokens": 15}))
    assert usually == asked
    assert not all(result["finished"] for result in usually["results"])


def test_unknown_tokens_are_counted(client_of, runs):
    text = "the 犬 dog"
    for name, request in (("translate", {"texts": [text]}), ("classify", {"texts": [text]}), ("generate", {"prompt": text})):
        answer = client_of(name).post(f"/{name}", json=request).json()
        result = answer if name == "generate" else answer["results"][0]
        tokeniser = TextTokeniser.load(model_in(runs[name]) / "tokeniser.json")
        assert result["unknown"] == tokeniser.count_unknown(tokeniser.encode([text])[0])
