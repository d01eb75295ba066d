"""Two made-up tables with words, dates, numbers and holes: public.csv, from elsewhere, and visits.csv, which is private."""

import datetime
import random


def table(path: str, count: int, seed: int) -> None:
    """Visits to a hospital; the old, those of the north, and the heavy come back more often."""
    draw = random.Random(seed)
    with open(path, "w", encoding="utf-8") as out:
        print("age,ward,seen,weight,back", file=out)
        for _ in range(count):
            age, weight = draw.randint(18, 90), round(draw.gauss(75, 14), 2)
            ward = draw.choices(["north", "south", "east", "roof"], [40, 35, 24.8, 0.2])[0]
            day = datetime.date(2024, 1, 1) + datetime.timedelta(draw.randrange(700))
            back = draw.random() < 0.05 + 0.5 * (age > 60) + 0.3 * (ward == "north") + 0.1 * (weight > 85)
            cells = [age, ward, day, weight]
            for place in (0, 1):
                if draw.random() < 0.04:
                    cells[place] = "?"
            print(*cells, "yes" if back else "no", sep=",", file=out)


if __name__ == "__main__":
    table("public.csv", 3000, seed=1)
    table("visits.csv", 10000, seed=2)
