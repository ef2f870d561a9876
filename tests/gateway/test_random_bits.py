from gateway.random_bits import RandomBits


def test_nothing_is_handed_out_twice() -> None:
    """Each number is new, also where the pool is filled anew, whatever the sizes asked for."""
    bits = RandomBits()
    taken = [bits.take(size) for size in (16, 24) * 1000]
    assert [len(each) for each in taken] == [16, 24] * 1000
    assert len({each[:16] for each in taken}) == 2000
