"""What the window of a crop shows of a picture in memory, and the copy of it where it keeps its size."""

from typing import Any

from fastimg.loaders.jpeg.decoding.memory import copy_bytes
from fastimg.loaders.jpeg.decoding.region import region_of_pixels
from fastimg.loaders.jpeg.windows import is_inside
from fastimg.loaders.runtime.compiled import compiled, inlined, int64


@compiled
def region_of_job(width: int, height: int, job: Any, out: Any, bicubic: bool, regions: Any) -> None:
    """Fill `regions[0]` for the window `out` [H, W, C] of a job, in a picture of this size: see `region_of_pixels`."""
    region_of_pixels(
        (width, height),
        (job.x, job.y, job.width, job.height),
        (job.resized_width, job.resized_height),
        (job.at_x, job.at_y),
        out,
        bicubic,
        regions,
    )


@compiled
def find_shown(width: int, height: int, jobs: Any, out: Any, bicubic: bool, regions: Any) -> tuple[int, int, bool]:
    """The rows of a picture [top, bottom) that the window of `jobs[0]`, `out` [H, W, C], depends on.

    And whether it keeps its size: then `copy_shown` fills it, otherwise `regions[0]` is filled for its resize. The rows
    are none where the window reaches too far beyond the picture.
    """
    job, region = jobs[0], regions[0]
    tall, wide = out.shape[0], out.shape[1]
    kept = job.resized_width == job.width and job.resized_height == job.height
    inside = is_inside(jobs, wide, tall)
    if kept and inside:
        top = job.y + job.at_y
        return top, top + tall, True
    if kept:
        return (job.y, job.y + job.height, True) if _is_mirrored_once(job, wide, tall) else (0, 0, True)
    if not inside:
        return 0, 0, False
    region_of_job(width, height, job, out, bicubic, regions)
    return region.y, region.y + region.height, False


@inlined
def _is_mirrored_once(job: Any, wide: int, tall: int) -> bool:
    """Whether a window shows some of a box, and reaches beyond it by less than what can be mirrored there."""
    across = max(-wide, -job.width) < job.at_x < job.width and job.at_x + wide < 2 * job.width
    down = max(-tall, -job.height) < job.at_y < job.height and job.at_y + tall < 2 * job.height
    return bool(across and down)


@inlined
def mirrored(place: int, count: int) -> int:
    """The place of `count` that is shown at one beyond them; below 0 where they are not mirrored so far."""
    return count - 1 - abs(count - 1 - abs(place))


@compiled
def copy_shown(address: int, pitch: int, job: Any, out: Any) -> None:
    """Copy the window of a box that keeps its size, and begins at an address, to `out` [H, W, C]."""
    tall, wide, channels = out.shape
    begin, end = max(-job.at_x, 0), min(wide, job.width - job.at_x)  # what is not mirrored
    for y in range(tall):
        line = address + mirrored(job.at_y + y, job.height) * pitch
        to = int64(out.ctypes.data) + y * wide * channels
        copy_bytes(line + (job.at_x + begin) * channels, to + begin * channels, (end - begin) * channels)
        for i in range(wide - (end - begin)):
            x = i if i < begin else i + end - begin
            copy_bytes(line + mirrored(job.at_x + x, job.width) * channels, to + x * channels, channels)
