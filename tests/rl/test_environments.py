"""Games by name, what is wrong with some, vectors of them, and how a player comes back to where it was."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

pytest.importorskip("gymnasium")

from afec.nets import make_backbone
from afec.rl.environments import ATARI, MINATAR, find_game, find_games
from afec.rl.net import GameNet
from afec.rl.player import EnvironmentFaultError, Player, as_tensor


@pytest.mark.parametrize(
    ("suite", "name", "words"),
    [
        ("minatar", "Brekout", "unknown MinAtar game 'Brekout'; did you mean 'Breakout'?"),
        ("atari", "Boxin", "unknown Atari game 'Boxin'; did you mean 'Boxing'?"),
        ("gymnasium", "CartPole-v9", "did you mean 'CartPole-v"),
        ("gymnasium", "no_such_module:Game-v0", "there is no module no_such_module"),
        ("snes", "Mario", "unknown suite of games 'snes'"),
    ],
)
def test_an_unknown_game_is_told_the_nearest_name(suite, name, words):
    pytest.importorskip("minatar")
    pytest.importorskip("ale_py")
    with pytest.raises(ValueError) as caught:
        find_game(suite, name)
    assert words in str(caught.value)


def test_names_are_found_however_they_are_written():
    pytest.importorskip("minatar")
    assert {find_game("minatar", name).name for name in ("SpaceInvaders", "space_invaders", "space invaders")} == {
        "SpaceInvaders"
    }


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["small_games:Continuous-v0"], "expected Discrete actions"),
        (["small_games:Count-v0", "small_games:Wide-v0"], "stream.pad=true fills up the shorter ones"),
        (["small_games:Count-v0", "small_games:Count-v0"], "twice"),
        ([], "stream.games is empty"),
    ],
)
def test_sequences_that_cannot_be(names, words):
    with pytest.raises(ValueError, match=words):
        find_games("gymnasium", names)


def test_padding_fills_up_flat_observations():
    games = find_games("gymnasium", ["small_games:Count-v0", "small_games:Wide-v0"], pad=True)
    assert [game.shape for game in games] == [(5,), (5,)]
    seen = Player(games[0], 2, 0).observations
    assert seen.shape == (2, 5)
    assert not seen[:, 2:].any()


def test_a_missing_package_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "minatar", None)
    with pytest.raises(ValueError, match=r"pip install 'afec\[rl\]'"):
        find_game("minatar", "Breakout")


def test_minatar_is_the_game_itself_step_by_step():
    """The vector against one `minatar.Environment` with the same seed and actions."""
    minatar = pytest.importorskip("minatar")
    for name in MINATAR:
        game = find_game("minatar", name, max_steps=60)
        plain = name if name != "SpaceInvaders" else "space_invaders"
        single = minatar.Environment(plain.lower(), sticky_action_prob=0.1, difficulty_ramping=True)
        single.seed(8)
        single.reset()
        player, moves = Player(game, 2, 7), single.minimal_action_set()
        generator, taken = np.random.default_rng(0), 0
        for _ in range(150):
            actions = generator.integers(0, game.actions, 2)
            moved = player.step(actions)
            reward, over = single.act(moves[actions[1]])
            taken += 1
            assert moved.rewards[1] == reward
            assert moved.terminated[1] == over
            assert moved.truncated[1] == (taken == 60 and not over)
            if over or taken == 60:
                last = np.moveaxis(single.state(), -1, 0)
                np.testing.assert_array_equal(moved.last[1][: len(last)], last)
                single.reset()
                taken = 0
            state = np.moveaxis(single.state(), -1, 0)
            np.testing.assert_array_equal(player.observations[1, : len(state)], state)
            assert not player.observations[1, len(state) :].any()


def test_the_papers_atari_games_have_the_actions_of_the_released_code():
    pytest.importorskip("ale_py")
    games = find_games("atari", ATARI)
    assert [game.actions for game in games] == [18, 18, 9, 9, 8, 18, 6, 6]
    assert {game.shape for game in games} == {(4, 84, 84)}


@pytest.mark.parametrize(
    ("suite", "name"), [("gymnasium", "CartPole-v1"), ("minatar", "Asterix"), ("atari", "DemonAttack")]
)
def test_a_player_comes_back_bit_for_bit(suite, name):
    pytest.importorskip("minatar")
    pytest.importorskip("ale_py")
    game = find_game(suite, name)
    one, other = Player(game, 2, 3), Player(game, 2, 3)
    generator = np.random.default_rng(1)
    for _ in range(40):
        one.step(generator.integers(0, game.actions, 2))
    other.step(np.zeros(2, dtype=np.int64))
    other.load_state_dict(one.state_dict())
    assert other.finished == one.finished
    for _ in range(20):
        actions = generator.integers(0, game.actions, 2)
        left, right = one.step(actions), other.step(actions)
        for a, b in zip(left[:4], right[:4], strict=True):
            np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(one.observations, other.observations)
    assert one.returns() == other.returns()
    one.close()
    other.close()


def test_a_game_that_draws_elsewhere_is_said_when_it_does_not_come_back():
    np.random.seed(0)
    one = Player(find_game("gymnasium", "small_games:Wild-v0"), 1, 0)
    one.step(np.array([1]))
    with pytest.warns(RuntimeWarning, match="not bit for bit"):
        one.load_state_dict(one.state_dict())


def test_a_game_that_raises_or_pays_no_number_is_named():
    player = Player(find_game("gymnasium", "small_games:NoNumber-v0"), 1, 0)
    with pytest.raises(EnvironmentFaultError, match="paid a reward of nan in step 30"):
        for _ in range(40):
            player.step(np.array([1]))
    player = Player(find_game("gymnasium", "small_games:Fault-v0"), 1, 0)
    with pytest.raises(EnvironmentFaultError, match="raised OSError in step 100: the joystick is gone"):
        for _ in range(200):
            player.step(np.array([1]))


def test_stored_observations_are_narrow():
    from afec.rl.player import as_tensor

    assert as_tensor(np.zeros(2, dtype=np.float64)).dtype == torch.float32
    assert as_tensor(np.zeros(2, dtype=np.uint8)).dtype == torch.uint8
    assert as_tensor(np.zeros(2, dtype=np.bool_)).dtype == torch.bool


def test_evaluating_an_atari_game_takes_no_new_memory_in_every_step():
    """Before, each step of 30 copies took 3.4 MB more: an hour of Atari, all of the memory."""
    pytest.importorskip("ale_py")
    process, game = pytest.importorskip("psutil").Process(), find_game("atari", "CrazyClimber")
    torch.manual_seed(0)
    net = GameNet(make_backbone("atari", width=0.125, hidden=16), [game.actions]).to(memory_format=torch.channels_last)
    player, generator = Player(game, 30, 5, training=False), np.random.default_rng(0)
    seen = []
    with torch.no_grad():
        for _ in range(60):
            net.policy(as_tensor(player.observations), 0)
            player.step(generator.integers(0, game.actions, 30))
            seen.append(process.memory_info().rss / 1e6)
    player.close()
    assert seen[-1] - seen[10] < 60  # up to 170 before
